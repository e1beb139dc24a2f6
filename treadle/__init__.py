"""Treadle: one training loop for PyTorch, four front doors.

Importing it has no effect, and costs nothing: each name below is loaded when it is first used.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle import callbacks, checkpoint, data, errors, parallel, schedules
    from treadle.callback import TrainerCallback
    from treadle.callbacks import DEFAULT_CALLBACKS
    from treadle.errors import StopTrainingError
    from treadle.events import RunHistory
    from treadle.execution import Compile
    from treadle.loop.metrics import CollectedMetric
    from treadle.ops.linear_cross_entropy import linear_cross_entropy
    from treadle.optim.freezing import ModelFreezer
    from treadle.optim.lr_finder import find_learning_rate
    from treadle.optim.lr_scaling import LRScaling
    from treadle.optim.param_groups import layerwise_decay, parameter_groups
    from treadle.parallel.launch.notebook import notebook_launcher
    from treadle.phase import Phase, alternate
    from treadle.result import TrainResult
    from treadle.schedules.placeholders import TrainerPlaceholderValues
    from treadle.schedules.timm import TrainerWithTimmScheduler
    from treadle.tools.reproduce import verify
    from treadle.tools.summary import summary
    from treadle.trainer import Trainer

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_CALLBACKS",
    "CollectedMetric",
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
    "summary",
    "verify",
]

_HOMES = {
    "DEFAULT_CALLBACKS": "callbacks",
    "CollectedMetric": "loop.metrics",
    "Compile": "execution",
    "LRScaling": "optim.lr_scaling",
    "ModelFreezer": "optim.freezing",
    "Phase": "phase",
    "RunHistory": "events",
    "StopTrainingError": "errors",
    "TrainResult": "result",
    "Trainer": "trainer",
    "TrainerCallback": "callback",
    "TrainerPlaceholderValues": "schedules.placeholders",
    "TrainerWithTimmScheduler": "schedules.timm",
    "alternate": "phase",
    "find_learning_rate": "optim.lr_finder",
    "layerwise_decay": "optim.param_groups",
    "linear_cross_entropy": "ops.linear_cross_entropy",
    "notebook_launcher": "parallel.launch.notebook",
    "parameter_groups": "optim.param_groups",
    "summary": "tools.summary",
    "verify": "tools.reproduce",
}


def __getattr__(name: str) -> Any:
    from treadle.errors import load_module

    if name in _HOMES:
        return getattr(load_module(f"treadle.{_HOMES[name]}"), name)
    if name in __all__:
        return load_module(f"treadle.{name}")
    raise AttributeError(f"module 'treadle' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _FormerNames:
    """Finds modules by the names that they had before: programs import them, and the folders of runs name them."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith("treadle."):
            return None
        return import_module("treadle.config.former_names").find_former(name)


# The last to be asked: where a module is found by its own name, this costs nothing.
sys.meta_path.append(_FormerNames)
