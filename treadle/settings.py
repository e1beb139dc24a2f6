"""The arguments of `Trainer.train`, checked together before anything is built."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch.optim.lr_scheduler import ReduceLROnPlateau

from treadle.errors import ConfigError
from treadle.lr_scaling import LRScaling
from treadle.progress import Cadence
from treadle.run_config import TrainerRunConfig

Interval = Literal["step", "epoch"]


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
