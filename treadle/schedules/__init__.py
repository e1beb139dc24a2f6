"""Learning-rate schedules: built by a factory, stepped after each update, resumed from a step number.

`Schedule` and its children in `treadle.schedules.family` are Treadle's own. `SchedulerBase`,
`StatefulSchedulerBase`, `CosineLrScheduler` and `WSDLrScheduler` have the names and arguments of
pytorch-accelerated.
"""

from treadle.schedules.base import Schedule, SchedulerBase, StatefulSchedulerBase
from treadle.schedules.cosine_lr import CosineLrScheduler
from treadle.schedules.factory import require_factory
from treadle.schedules.family import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PolynomialSchedule,
    StepSchedule,
    WSDSchedule,
)
from treadle.schedules.lr_multiplier import LRMultiplier
from treadle.schedules.wsd_lr import WSDLrScheduler, estimate_checkpoint_steps

__all__ = [
    "ConstantSchedule",
    "CosineLrScheduler",
    "CosineSchedule",
    "ExponentialSchedule",
    "LRMultiplier",
    "LinearSchedule",
    "PolynomialSchedule",
    "Schedule",
    "SchedulerBase",
    "StatefulSchedulerBase",
    "StepSchedule",
    "WSDLrScheduler",
    "WSDSchedule",
    "estimate_checkpoint_steps",
    "require_factory",
]
