"""What `configure_optimizers` returns, in any of its forms, as one optimizer with its schedule."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from treadle.errors import ConfigError, did_you_mean
from treadle.schedules.factory import require_scheduler
from treadle.spec import Interval

OF_OPTIMIZERS = ("optimizer", "lr_scheduler", "monitor", "frequency")
OF_SCHEDULES = ("scheduler", "interval", "frequency", "monitor", "reduce_on_plateau", "strict", "name")
"""The keys that Lightning knows in what `configure_optimizers` returns."""

REMEDY = (
    "set self.automatic_optimization = False in __init__ and step them in training_step, or override phases() of "
    "treadle.Trainer to have several take turns"
)


@dataclass(frozen=True)
class OptimizerSetup:
    """An optimizer and its schedule.

    Attributes:
        optimizer: The optimizer.
        scheduler: The schedule; None if there is none.
        interval: Whether it moves by steps or by epochs.
        metric: The metric that drives it.
    """

    optimizer: Optimizer
    scheduler: Any = None
    interval: Interval = "epoch"
    metric: str | None = None


def read_optimizers(found: Any) -> OptimizerSetup:
    """Return what `configure_optimizers` returned: an optimizer, a dict, or lists of optimizers and schedules.

    Raises:
        ConfigError: It is something else, or there are several optimizers.
    """
    if isinstance(found, Mapping):
        _check_keys(found, OF_OPTIMIZERS)
        return _with_schedule(found.get("optimizer"), found.get("lr_scheduler"), found.get("monitor"))
    if isinstance(found, (list, tuple)):
        optimizers, schedules = _lists(found)
        if len(optimizers) == 1 and isinstance(optimizers[0], Mapping):
            return read_optimizers(optimizers[0])
        if len(optimizers) != 1 or len(schedules) > 1:
            raise ConfigError(f"configure_optimizers returned {len(optimizers)} optimizers; {REMEDY}")
        return _with_schedule(optimizers[0], _made(schedules[0]) if schedules else None, None)
    return _with_schedule(found, None, None)


def read_several(found: Any) -> list[OptimizerSetup]:
    """Return what `configure_optimizers` returned for a model that steps its optimizers itself, each with its schedule.

    Raises:
        ConfigError: It is something else, or there are more schedules than optimizers.
    """
    if not isinstance(found, (list, tuple)):
        return [read_optimizers(found)]
    optimizers, schedules = _lists(found)
    if len(schedules) > len(optimizers):
        raise ConfigError(f"configure_optimizers returned {len(schedules)} schedules for {len(optimizers)} optimizers")
    setups = [read_optimizers(one) for one in optimizers]
    made = [_with_schedule(setup.optimizer, one, None) for setup, one in zip(setups, schedules, strict=False)]
    return made + setups[len(made) :]


def _check_keys(found: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in found:
        if key not in known:
            near = did_you_mean(str(key), known) or f"; it may have {list(known)}"
            raise ConfigError(f"configure_optimizers returned a dict with {key!r}, which nobody reads{near}")


def _lists(found: Any) -> tuple[list[Any], list[Any]]:
    if len(found) == 2 and isinstance(found[0], (list, tuple)):
        return list(found[0]), list(found[1])
    return list(found), []


def _with_schedule(optimizer: Any, schedule: Any, monitor: str | None) -> OptimizerSetup:
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"configure_optimizers returned a {type(optimizer).__name__}; return a torch optimizer, alone or with its "
            "schedule"
        )
    if not isinstance(schedule, Mapping):
        return OptimizerSetup(optimizer, None if schedule is None else _made(schedule), metric=monitor)
    _check_keys(schedule, OF_SCHEDULES)
    if int(schedule.get("frequency", 1)) != 1:
        raise ConfigError(f"a schedule with frequency={schedule['frequency']} is not known; it moves in every interval")
    interval = schedule.get("interval", "epoch")
    if interval not in ("step", "epoch"):
        raise ConfigError(f"a schedule moves by 'step' or 'epoch', not by {interval!r}")
    return OptimizerSetup(optimizer, _made(schedule.get("scheduler")), interval, schedule.get("monitor", monitor))


def _made(schedule: Any) -> Any:
    if isinstance(schedule, Mapping):
        return schedule
    return require_scheduler(schedule, maker="configure_optimizers, for the schedule,")
