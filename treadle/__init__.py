"""Treadle: one training loop for PyTorch, four front doors.

Importing it has no effect, and costs nothing: each name below is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle import callbacks, checkpoint, data, errors, parallel, schedules
    from treadle.callback import TrainerCallback
    from treadle.callbacks import DEFAULT_CALLBACKS
    from treadle.errors import StopTrainingError
    from treadle.events import RunHistory
    from treadle.execution import Compile
    from treadle.freezing import ModelFreezer
    from treadle.fused_loss import linear_cross_entropy
    from treadle.lr_finder import find_learning_rate
    from treadle.lr_scaling import LRScaling
    from treadle.optimizers import layerwise_decay, parameter_groups
    from treadle.parallel.launching import notebook_launcher
    from treadle.phase import Phase, alternate
    from treadle.placeholders import TrainerPlaceholderValues
    from treadle.result import TrainResult
    from treadle.timm_schedule import TrainerWithTimmScheduler
    from treadle.trainer import Trainer
    from treadle.verification import verify

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_CALLBACKS",
    "Compile",
    "LRScaling",
    "ModelFreezer",
    "Phase",
    "RunHistory",
    "StopTrainingError",
    "TrainResult",
    "Trainer",
    "TrainerCallback",
    "TrainerPlaceholderValues",
    "TrainerWithTimmScheduler",
    "__version__",
    "alternate",
    "callbacks",
    "checkpoint",
    "data",
    "errors",
    "find_learning_rate",
    "layerwise_decay",
    "linear_cross_entropy",
    "notebook_launcher",
    "parallel",
    "parameter_groups",
    "schedules",
    "verify",
]

_HOMES = {
    "DEFAULT_CALLBACKS": "callbacks",
    "Compile": "execution",
    "LRScaling": "lr_scaling",
    "ModelFreezer": "freezing",
    "Phase": "phase",
    "RunHistory": "events",
    "StopTrainingError": "errors",
    "TrainResult": "result",
    "Trainer": "trainer",
    "TrainerCallback": "callback",
    "TrainerPlaceholderValues": "placeholders",
    "TrainerWithTimmScheduler": "timm_schedule",
    "alternate": "phase",
    "find_learning_rate": "lr_finder",
    "layerwise_decay": "optimizers",
    "linear_cross_entropy": "fused_loss",
    "notebook_launcher": "parallel.launching",
    "parameter_groups": "optimizers",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"treadle.{_HOMES[name]}"), name)
    if name in __all__:
        return import_module(f"treadle.{name}")
    raise AttributeError(f"module 'treadle' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
