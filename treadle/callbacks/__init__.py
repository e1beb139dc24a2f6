"""Callbacks ready to use. Those that no trainer has by default are loaded when they are used."""

from typing import TYPE_CHECKING, Any

from treadle.callback import TrainerCallback
from treadle.callbacks.log_metrics import LogMetricsCallback
from treadle.callbacks.move_modules_to_device import MoveModulesToDeviceCallback
from treadle.callbacks.print_progress import PrintProgressCallback
from treadle.callbacks.progress_bar import ProgressBarCallback
from treadle.callbacks.run_stats_monitor import RunStatsMonitor
from treadle.callbacks.terminate_on_nan import TerminateOnNaNCallback
from treadle.errors import load_module

if TYPE_CHECKING:
    from treadle.callbacks.convert_sync_batch_norm import ConvertSyncBatchNormCallback
    from treadle.callbacks.early_stopping import EarlyStoppingCallback
    from treadle.callbacks.ema import ModelEma
    from treadle.callbacks.gradient_norm_monitor import GradientNormMonitor
    from treadle.callbacks.learning_rate_monitor import LearningRateMonitor
    from treadle.callbacks.limit_batches import LimitBatches, LimitBatchesCallback
    from treadle.callbacks.limit_eval_steps import LimitEvalStepsCallback
    from treadle.callbacks.model_ema import ModelEmaCallback
    from treadle.callbacks.profiler import ProfilerCallback
    from treadle.callbacks.save_best_model import SaveBestModelCallback
    from treadle.callbacks.save_training_state import SaveTrainingStateCallback
    from treadle.callbacks.step_based_evaluation import StepBasedEvaluationCallback
    from treadle.callbacks.step_timer import StepTimer
    from treadle.callbacks.throughput_monitor import ThroughputMonitor
    from treadle.callbacks.watched_metric import WatchesMetric
    from treadle.callbacks.wsd_checkpoint import WSDCheckpointCallback

__all__ = [
    "DEFAULT_CALLBACKS",
    "ConvertSyncBatchNormCallback",
    "EarlyStoppingCallback",
    "GradientNormMonitor",
    "LearningRateMonitor",
    "LimitBatches",
    "LimitBatchesCallback",
    "LimitEvalStepsCallback",
    "LogMetricsCallback",
    "ModelEma",
    "ModelEmaCallback",
    "MoveModulesToDeviceCallback",
    "PrintProgressCallback",
    "ProfilerCallback",
    "ProgressBarCallback",
    "RunStatsMonitor",
    "SaveBestModelCallback",
    "SaveTrainingStateCallback",
    "StepBasedEvaluationCallback",
    "StepTimer",
    "TerminateOnNaNCallback",
    "ThroughputMonitor",
    "TrainerCallback",
    "WSDCheckpointCallback",
    "WatchesMetric",
    "get_default_callbacks",
]

_HOMES = {
    "ConvertSyncBatchNormCallback": "convert_sync_batch_norm",
    "EarlyStoppingCallback": "early_stopping",
    "GradientNormMonitor": "gradient_norm_monitor",
    "LearningRateMonitor": "learning_rate_monitor",
    "LimitBatches": "limit_batches",
    "LimitBatchesCallback": "limit_batches",
    "LimitEvalStepsCallback": "limit_eval_steps",
    "ModelEma": "ema",
    "ModelEmaCallback": "model_ema",
    "ProfilerCallback": "profiler",
    "SaveBestModelCallback": "save_best_model",
    "SaveTrainingStateCallback": "save_training_state",
    "StepBasedEvaluationCallback": "step_based_evaluation",
    "StepTimer": "step_timer",
    "ThroughputMonitor": "throughput_monitor",
    "WSDCheckpointCallback": "wsd_checkpoint",
    "WatchesMetric": "watched_metric",
}

DEFAULT_CALLBACKS: tuple[type[TrainerCallback], ...] = (
    MoveModulesToDeviceCallback,
    TerminateOnNaNCallback,
    PrintProgressCallback,
    ProgressBarCallback,
    LogMetricsCallback,
    RunStatsMonitor,
)
"""The callbacks of a trainer that is given none: classes, so that each trainer builds its own."""


def get_default_callbacks(progress_bar: bool = True) -> tuple[type[TrainerCallback], ...]:
    """Return the default callbacks, with the progress bar or without it."""
    return tuple(callback for callback in DEFAULT_CALLBACKS if progress_bar or callback is not ProgressBarCallback)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(load_module(f"treadle.callbacks.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'treadle.callbacks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
