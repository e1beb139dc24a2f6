"""What a run reports: scalars on the device until a log is due, then one copy to the host."""

from treadle.events.loss_tracker import LossSummary, LossTracker, NonFinite
from treadle.events.reading import read_values
from treadle.events.run_history import InMemoryRunHistory, RunHistory
from treadle.events.series import STEP_WINDOW, Kind, Series
from treadle.events.storage import EventStorage

__all__ = [
    "STEP_WINDOW",
    "EventStorage",
    "InMemoryRunHistory",
    "Kind",
    "LossSummary",
    "LossTracker",
    "NonFinite",
    "RunHistory",
    "Series",
    "read_values",
]
