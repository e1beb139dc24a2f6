"""The arguments of a trainer and of `Trainer.train`, checked together before anything is built."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from treadle.errors import ConfigError
from treadle.gradients import REDUCTIONS
from treadle.lr_scaling import LRScaling
from treadle.progress import Cadence
from treadle.run_config import TrainerRunConfig

Interval = Literal["step", "epoch"]
ON_NONFINITE = ("raise", "skip", "rollback")
MICROBATCH = ("fixed", "auto")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run was asked to do."""

    num_epochs: int | None
    max_steps: int | None
    per_device_batch_size: int
    accumulation: int
    clip_value: float | None
    clip_norm: float | None
    scheduler_interval: Interval | None
    scheduler_metric: str | None
    eval_every: Cadence | None
    log_every: Cadence
    save_every: Cadence | None
    resume_from: Path | None
    lr_scaling: LRScaling = field(default_factory=LRScaling)
    resume: str | None = None
    extend: str | None = None

    def __post_init__(self) -> None:
        if self.num_epochs is None and self.max_steps is None:
            raise ConfigError("train() needs a limit; pass num_epochs= or max_steps= (or both: the smaller wins)")
        self._require_positive("num_epochs", self.num_epochs)
        self._require_positive("max_steps", self.max_steps)
        self._require_positive("per_device_batch_size", self.per_device_batch_size)
        self._require_positive("gradient_accumulation_steps", self.accumulation)
        self._require_positive("gradient_clip_value", self.clip_value, whole=False)
        self._require_positive("clip_norm", self.clip_norm, whole=False)
        if self.resume not in (None, "auto"):
            raise ConfigError(f"resume={self.resume!r} is unknown; use 'auto' to go on with the run in run_dir")
        if self.extend not in (None, "stretch", "hold"):
            raise ConfigError(f"extend={self.extend!r} is unknown; use 'stretch' or 'hold'")
        if not isinstance(self.lr_scaling, LRScaling):
            raise ConfigError(f"lr_scaling={self.lr_scaling!r}; pass LRScaling('linear', reference_batch_size=256)")
        if self.scheduler_interval not in (None, "step", "epoch"):
            raise ConfigError(f"scheduler_interval={self.scheduler_interval!r} is unknown; use 'step' or 'epoch'")

    @staticmethod
    def _require_positive(name: str, value: Any, *, whole: bool = True) -> None:
        if value is None:
            return
        kinds = (int,) if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
            raise ConfigError(f"{name}={value!r} must be a {'whole ' if whole else ''}number above 0")

    def as_in(self, config: TrainerRunConfig, own: TrainerRunConfig) -> "RunSettings":
        """Return the settings of a run by `config`, where it differs from the trainer's `own`."""
        names = {
            "num_epochs": "num_epochs",
            "max_num_train_steps": "max_steps",
            "gradient_accumulation_steps": "accumulation",
            "gradient_clip_value": "clip_value",
        }
        changed = {
            ours: getattr(config, name) for name, ours in names.items() if getattr(config, name) != getattr(own, name)
        }
        return replace(self, **changed) if changed else self

    def interval_of(self, scheduler: Any) -> Interval:
        """Return when `scheduler` moves on: as asked, else per epoch for a plateau and per step for others."""
        if self.scheduler_interval is not None:
            return self.scheduler_interval
        watches = isinstance(scheduler, ReduceLROnPlateau) or self.scheduler_metric is not None
        return "epoch" if watches else "step"

    def metric_of(self, scheduler: Any, *, evaluates: bool) -> str | None:
        """Return the metric that drives `scheduler`, None if it needs none."""
        if self.scheduler_metric is not None or not isinstance(scheduler, ReduceLROnPlateau):
            return self.scheduler_metric
        return "eval_loss_epoch" if evaluates else "train_loss_epoch"


def one_limit(max_num_train_steps: int | None, max_steps: int | None) -> int | None:
    """Return the one step limit that two spellings of the same argument give."""
    if max_num_train_steps is not None and max_steps is not None and max_num_train_steps != max_steps:
        raise ConfigError(
            f"max_steps={max_steps} and max_num_train_steps={max_num_train_steps} differ; pass one of them"
        )
    return max_steps if max_steps is not None else max_num_train_steps


def check_choices(
    on_nonfinite: str, max_rollbacks: int, microbatch: str, loss_reduction: str, seed: Any, deterministic: Any
) -> None:
    """Refuse arguments of a trainer that are none of those there are.

    Raises:
        ConfigError: One of them is not.
    """
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral)):
        raise ConfigError(f"seed={seed!r} must be a whole number, or None to seed nothing")
    if not isinstance(deterministic, bool):
        raise ConfigError(f"deterministic={deterministic!r} must be True or False")
    if on_nonfinite not in ON_NONFINITE:
        raise ConfigError(f"on_nonfinite={on_nonfinite!r} is unknown; use one of {ON_NONFINITE}")
    if type(max_rollbacks) is not int or max_rollbacks < 0:
        raise ConfigError(f"max_rollbacks={max_rollbacks!r} must be a whole number from 0")
    if microbatch not in MICROBATCH:
        raise ConfigError(f"microbatch={microbatch!r} is unknown; use one of {MICROBATCH}")
    if loss_reduction not in REDUCTIONS:
        raise ConfigError(f"loss_reduction={loss_reduction!r} is unknown; use 'mean' or 'sum'")


def check_parts(model: Any, loss_func: Any, optimizer: Any, callbacks: Any) -> None:
    """Refuse a model, a loss, optimizers or callbacks that cannot be these.

    Raises:
        ConfigError: One of them cannot.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}; pass a torch.nn.Module")
    if isinstance(loss_func, type) and issubclass(loss_func, nn.Module):
        name = loss_func.__name__
        raise ConfigError(f"loss_func is the class {name}; pass an instance: loss_func={name}()")
    if loss_func is not None and not callable(loss_func):
        raise ConfigError(f"loss_func is a {type(loss_func).__name__}; pass a callable of (outputs, targets), or None")
    several = list(optimizer.values()) if isinstance(optimizer, Mapping) else [optimizer]
    for one in several:
        if one is not None and not isinstance(one, Optimizer):
            raise ConfigError(f"optimizer is a {type(one).__name__}; pass a torch.optim.Optimizer, or a dict of them")
    if callbacks is None or isinstance(callbacks, (str, bytes)) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks={callbacks!r}; pass a sequence of callbacks, or () for none")
