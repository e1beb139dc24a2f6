"""The options of a run: the one form in which every door asks for something."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from treadle.checkpoint.policy import Policy
from treadle.errors import ConfigError, did_you_mean, require_positive
from treadle.execution.base import ExecutionOption
from treadle.execution.compiled import Compile
from treadle.optim.gradients import REDUCTIONS, LossReduction
from treadle.optim.lr_scaling import LRScaling
from treadle.parallel.plan import Plan
from treadle.parallel.strategy import Strategy
from treadle.precision import LossScaling, Precision
from treadle.precision.formats import PrecisionName
from treadle.precision.tf32 import ConvolutionPrecision, MatmulPrecision
from treadle.progress import Cadence
from treadle.schedules.extend import Extend

Interval = Literal["step", "epoch"]
OnNonFinite = Literal["raise", "skip", "rollback"]
Microbatch = Literal["fixed", "auto"]
ON_NONFINITE: tuple[OnNonFinite, ...] = get_args(OnNonFinite)
MICROBATCH: tuple[Microbatch, ...] = get_args(Microbatch)
EVERY_EPOCH, EVERY_50_STEPS = Cadence(1, "epochs"), Cadence(50, "steps")
FIRST_OF_TRAIN = "num_epochs"
"""The first option that `train` is asked for; those before it are what a trainer is built with."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Every option of a run, checked together before anything is built.

    The first part is what a trainer is built with; the second what `Trainer.train` is asked for, and `for_training`
    adds it. The names are those of the arguments, and what they mean is said there.

    >>> spec = RunSpec(seed=1).for_training(num_epochs=2, clip_norm=1.0)
    >>> spec.seed, spec.num_epochs, spec.gradient_accumulation_steps
    (1, 2, 1)
    """

    seed: int | None = None
    run_dir: Path | None = None
    precision: PrecisionName | Callable[..., Precision] = "fp32"
    loss_scaling: LossScaling | None = None
    matmul_precision: MatmulPrecision | None = None
    convolution_precision: ConvolutionPrecision | None = None
    loss_reduction: LossReduction = "mean"
    device: torch.device | str | None = None
    checkpoints: Policy = field(default_factory=Policy)
    on_nonfinite: OnNonFinite = "raise"
    max_rollbacks: int = 3
    deterministic: bool = False
    microbatch: Microbatch = "fixed"
    execution: ExecutionOption | Callable[..., Any] = "auto"
    compile: Compile | None = None
    activation_checkpointing: Sequence[str] | Literal["auto"] = ()
    offload_optimizer: bool = False
    timeout: float | None = None
    parallel: Plan | Strategy | Literal["auto"] | Callable[..., Strategy] = "auto"

    num_epochs: int | None = None
    max_steps: int | None = None
    per_device_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    gradient_clip_value: float | None = None
    clip_norm: float | None = None
    scheduler_interval: Interval | None = None
    scheduler_metric: str | None = None
    eval_every: Cadence | None = EVERY_EPOCH
    log_every: Cadence = EVERY_50_STEPS
    save_every: Cadence | None = None
    resume_from: Path | None = None
    resume: Literal["auto"] | None = None
    extend: Extend | None = None
    lr_scaling: LRScaling = field(default_factory=LRScaling)
    is_for_training: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        self._check_trainer()
        if self.is_for_training:
            self._check_training()

    def for_training(self, *, max_num_train_steps: int | None = None, **asked: Any) -> "RunSpec":
        """Return these options with what `Trainer.train` is asked for, in any of the forms that it takes.

        Raises:
            ConfigError: Something asked for cannot be, or not with the rest.
        """
        asked["max_steps"] = one_limit(max_num_train_steps, asked.get("max_steps"))
        # What was asked for, before the default: only a `save_every` that somebody gave is refused without a folder.
        saves = asked.get("save_every")
        if saves is None and self.run_dir is not None:
            asked["save_every"] = "1 epoch"
        for name in ("eval_every", "log_every", "save_every"):
            if name in asked:
                read = Cadence.parse if name == "log_every" else Cadence.parse_optional
                asked[name] = read(asked[name], name=name)
        if asked.get("resume_from") is not None:
            asked["resume_from"] = Path(asked["resume_from"])
        if asked.get("lr_scaling") is None:
            asked["lr_scaling"] = LRScaling()
        spec = replace(self, **asked, is_for_training=True)
        if spec.run_dir is None and (saves is not None or spec.resume is not None):
            unmet = f"save_every={saves!r}" if saves is not None else f"resume={spec.resume!r}"
            raise ConfigError(f"{unmet} needs a folder for the run; build the trainer with run_dir=")
        if spec.run_dir is None and spec.on_nonfinite == "rollback":
            raise ConfigError("on_nonfinite='rollback' needs checkpoints to go back to; give the trainer a run_dir=")
        return spec

    def _check_trainer(self) -> None:
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, Integral)):
            raise ConfigError(f"seed={self.seed!r} must be a whole number, or None to seed nothing")
        if not isinstance(self.deterministic, bool):
            raise ConfigError(f"deterministic={self.deterministic!r} must be True or False")
        if self.on_nonfinite not in ON_NONFINITE:
            raise ConfigError(f"on_nonfinite={self.on_nonfinite!r} is unknown; use one of {ON_NONFINITE}")
        if type(self.max_rollbacks) is not int or self.max_rollbacks < 0:
            raise ConfigError(f"max_rollbacks={self.max_rollbacks!r} must be a whole number from 0")
        if self.microbatch not in MICROBATCH:
            raise ConfigError(f"microbatch={self.microbatch!r} is unknown; use one of {MICROBATCH}")
        if self.loss_reduction not in REDUCTIONS:
            raise ConfigError(f"loss_reduction={self.loss_reduction!r} is unknown; use 'mean' or 'sum'")

    def _check_training(self) -> None:
        if self.num_epochs is None and self.max_steps is None:
            raise ConfigError("train() needs a limit; pass num_epochs= or max_steps= (or both: the smaller wins)")
        bounds = ("gradient_clip_value", "clip_norm")
        for name in ("num_epochs", "max_steps", "per_device_batch_size", "gradient_accumulation_steps", *bounds):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name), whole=name not in bounds)
        if self.resume not in (None, "auto"):
            raise ConfigError(f"resume={self.resume!r} is unknown; use 'auto' to resume the run in run_dir")
        if self.extend not in (None, "stretch", "hold"):
            raise ConfigError(f"extend={self.extend!r} is unknown; use 'stretch' or 'hold'")
        if not isinstance(self.lr_scaling, LRScaling):
            raise ConfigError(f"lr_scaling={self.lr_scaling!r}; pass LRScaling('linear', reference_batch_size=256)")
        if self.scheduler_interval not in (None, "step", "epoch"):
            raise ConfigError(f"scheduler_interval={self.scheduler_interval!r} is unknown; use 'step' or 'epoch'")

    # What follows from it -----------------------------------------------------------------------------------

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

    @property
    def clips(self) -> bool:
        """Whether gradients are bounded."""
        return self.clip_norm is not None or self.gradient_clip_value is not None


class Option:
    """An option of a trainer, found in its `spec`; to set it is to ask for another in the runs to come."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, trainer: Any, owner: type) -> Any:
        return self if trainer is None else getattr(trainer.spec, self._name)

    def __set__(self, trainer: Any, value: Any) -> None:
        # A subclass that sets it before the trainer is built has its argument's value afterwards.
        if "spec" in vars(trainer):
            trainer.spec = replace(trainer.spec, **{self._name: value})


def spec_options(part: Literal["trainer", "train"]) -> list[str]:
    """Return the names of the options that a trainer is built with, or that `train` is asked for.

    >>> spec_options("train")[:2]
    ['num_epochs', 'max_steps']
    """
    names = [one.name for one in fields(RunSpec) if one.name != "is_for_training"]
    first = names.index(FIRST_OF_TRAIN)
    return names[:first] if part == "trainer" else names[first:]


def divided(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what of `options` a trainer is built with, and what `train` is asked for.

    Doors translate what they are told into options, and hand these on.

    Raises:
        ConfigError: There is no option of such a name.

    >>> divided({"seed": 1, "clip_norm": 0.5})
    ({'seed': 1}, {'clip_norm': 0.5})
    """
    built, asked = spec_options("trainer"), spec_options("train")
    for name in options:
        if name not in (*built, *asked):
            raise ConfigError(f"{name!r} is no option of a run{did_you_mean(name, [*built, *asked]) or ''}")
    return (
        {name: value for name, value in options.items() if name in built},
        {name: value for name, value in options.items() if name in asked},
    )


def one_limit(max_num_train_steps: int | None, max_steps: int | None) -> int | None:
    """Return the one step limit that two spellings of the same argument give."""
    if max_num_train_steps is not None and max_steps is not None and max_num_train_steps != max_steps:
        raise ConfigError(
            f"max_steps={max_steps} and max_num_train_steps={max_num_train_steps} differ; pass one of them"
        )
    return max_steps if max_steps is not None else max_num_train_steps


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
    several = list(optimizer.values()) if isinstance(optimizer, Mapping) else optimizer
    listed = list(several) if isinstance(several, (list, tuple)) else [several]
    if not listed:
        raise ConfigError(f"optimizer={optimizer!r} has no optimizer in it; pass None to evaluate only")
    for one in listed:
        if not isinstance(one, Optimizer) and (one is not None or several is not one):
            raise ConfigError(
                f"optimizer is a {type(one).__name__}; pass a torch.optim.Optimizer, or a list or a dict of them"
            )
    if callbacks is None or isinstance(callbacks, (str, bytes)) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks={callbacks!r}; pass a sequence of callbacks, or () for none")


class Refused(NamedTuple):
    """Says that a door has no name for an option, and why."""

    reason: str


Names = Mapping[str, str | Refused]
"""How a door calls the options, by their names in the core: one table a door, in its `option_names.py`."""


def check_names(door: str, names: Names) -> None:
    """Make sure that a door has a word on every option.

    Raises:
        ConfigError: It forgot some, or names what is no option.
    """
    known = [*spec_options("trainer"), *spec_options("train")]
    forgotten, unknown = [one for one in known if one not in names], [one for one in names if one not in known]
    if forgotten or unknown:
        raise ConfigError(f"the options of {door}: no word on {forgotten}, and no such option as {unknown}")
