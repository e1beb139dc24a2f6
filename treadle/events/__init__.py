"""What a run reports: scalars on the device until a log is due, then one copy to the host."""

from treadle.events.flattening import flatten_results
from treadle.events.history_buffer import HistoryBuffer
from treadle.events.loss_tracker import LossSummary, LossTracker, NonFinite
from treadle.events.reading import read_values
from treadle.events.run_history import EvaluationHistory, InMemoryRunHistory, RunHistory
from treadle.events.series import STEP_WINDOW, Kind, Series
from treadle.events.stack import get_event_storage, has_event_storage
from treadle.events.storage import EventStorage

__all__ = [
    "STEP_WINDOW",
    "EvaluationHistory",
    "EventStorage",
    "HistoryBuffer",
    "InMemoryRunHistory",
    "Kind",
    "LossSummary",
    "LossTracker",
    "NonFinite",
    "RunHistory",
    "Series",
    "flatten_results",
    "get_event_storage",
    "has_event_storage",
    "read_values",
]
