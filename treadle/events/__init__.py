"""What a run reports: scalars on the device until a log is due, then one copy to the host."""

from treadle.events.flattening import flatten_results
from treadle.events.history_buffer import STEP_WINDOW, HistoryBuffer, Kind, Series
from treadle.events.loss_tracker import LossSummary, LossTracker, NonFinite
from treadle.events.pending import read_values
from treadle.events.run_history import EvaluationHistory, InMemoryRunHistory, RunHistory
from treadle.events.storage import EventStorage, get_event_storage, has_event_storage

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
