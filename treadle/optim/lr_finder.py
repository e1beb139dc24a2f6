"""Finds a learning rate: a short run of the trainer itself with a rate that grows at every step."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from treadle.callback import CallbackHandler, TrainerCallback
from treadle.callbacks import MoveModulesToDeviceCallback
from treadle.checkpoint import Tracked
from treadle.data import RandomState
from treadle.errors import ConfigError, StopTrainingError, importing
from treadle.events import InMemoryRunHistory
from treadle.ops.eval_mode import keep_modes

if TYPE_CHECKING:
    from treadle.trainer import Trainer

SET_BY_THE_SWEEP = frozenset(
    {"num_epochs", "max_steps", "max_num_train_steps", "eval_dataset", "create_scheduler_fn", "resume_from"}
    | {"log_every", "eval_every", "save_every", "reset_run_history"}
)


@dataclass(frozen=True)
class LearningRateSweep:
    """What a sweep over learning rates found.

    Attributes:
        rates: The rates tried, lowest first.
        losses: The training loss of the step at each rate, before its update.
        smoothed: The losses, smoothed.
    """

    rates: list[float]
    losses: list[float]
    smoothed: list[float]

    @property
    def suggestion(self) -> float | None:
        """The rate, before the lowest loss, where the loss falls fastest; None if it never falls.

        The fall at a rate is the difference of the mean losses of a tenth of the steps before and after it: one
        batch that happens to be easy does not decide.
        """
        width = max(1, len(self.losses) // 10)
        lowest = min(range(len(self.smoothed)), key=self.smoothed.__getitem__, default=0)
        places = range(width - 1, min(lowest, len(self.losses) - width))
        falls = {place: _fall(self.losses, place + 1, width) for place in places}
        steepest = max(falls, key=falls.__getitem__, default=None)
        return None if steepest is None or falls[steepest] <= 0 else self.rates[steepest]

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the losses over the rates into an image file.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        with importing("matplotlib", extra="plot", user="LearningRateSweep.plot"):
            from matplotlib.figure import Figure
        axes = (figure := Figure(layout="constrained")).add_subplot()
        axes.plot(self.rates, self.losses, alpha=0.3, label="loss")
        axes.plot(self.rates, self.smoothed, label="smoothed")
        if self.suggestion is not None:
            axes.axvline(self.suggestion, linestyle=":", color="black", label=f"suggestion {self.suggestion:.2g}")
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
        axes.legend()
        figure.savefig(path)


def _fall(losses: list[float], place: int, width: int) -> float:
    return fmean(losses[place - width : place]) - fmean(losses[place : place + width])


def find_learning_rate(
    trainer: "Trainer",
    train_dataset: Any,
    *,
    min_lr: float = 1e-7,
    max_lr: float = 1.0,
    steps: int = 100,
    smoothing: float = 0.9,
    divergence: float = 4.0,
    **train_arguments: Any,
) -> LearningRateSweep:
    """Train for some steps with a rate that grows from `min_lr` to `max_lr`, and put everything back.

    Model, optimizer, metrics and random generators are afterwards as they were before. Groups of parameters keep
    the proportions of their rates: the one with the highest gets the rate of the sweep.

    Args:
        trainer: The trainer, as it will be used; its callbacks do not take part.
        train_dataset: The data to train on.
        min_lr: The rate of the first step.
        max_lr: The rate of the last step.
        steps: How many rates to try.
        smoothing: How much of the mean of the losses stays at each step.
        divergence: The sweep ends when the smoothed loss is so many times its lowest.
        **train_arguments: Further arguments of `Trainer.train`, such as `per_device_batch_size`.

    Raises:
        ConfigError: The range of rates is empty, or an argument of `train` is one that the sweep decides.
    """
    _check(min_lr, max_lr, steps, smoothing, divergence, train_arguments)
    rates = [min_lr * (max_lr / min_lr) ** (step / (steps - 1)) for step in range(steps)]
    sweep = _Sweep(rates, smoothing, divergence)
    with _everything_put_back(trainer):
        handler = CallbackHandler([MoveModulesToDeviceCallback, sweep])
        handler.on_stop = trainer.callback_handler.on_stop
        trainer.callback_handler = handler
        trainer.run_history, trainer.run_dir = InMemoryRunHistory(), None
        trainer.tracked = Tracked()
        trainer.train(train_dataset, max_steps=steps, log_every=1, eval_every=None, **train_arguments)
    return LearningRateSweep(rates[: len(sweep.losses)], sweep.losses, sweep.smoothed)


class _Sweep(TrainerCallback):
    """Sets the rate of every step and collects its loss, which the trainer logs at every step."""

    def __init__(self, rates: list[float], smoothing: float, divergence: float) -> None:
        self._rates, self._smoothing, self._divergence = rates, smoothing, divergence
        self._shares: list[list[float]] = []
        self._mean = 0.0
        self._over = False
        self.losses: list[float] = []
        self.smoothed: list[float] = []

    def on_training_run_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Take note of the proportions of the rates."""
        for optimizer in trainer.optimizers().values():
            own = [float(group["lr"]) for group in optimizer.param_groups]
            self._shares.append([rate / max(own) if max(own) > 0 else 1.0 for rate in own])

    def on_update_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Set the rate."""
        rate = self._rates[trainer.progress.step]
        for optimizer, shares in zip(trainer.optimizers().values(), self._shares, strict=True):
            for group, share in zip(optimizer.param_groups, shares, strict=True):
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate * share)
                else:
                    group["lr"] = rate * share

    def on_log(self, trainer: "Trainer", scalars: Any = None, **kwargs: Any) -> None:
        """Take the loss, and stop if it went astray."""
        # Several processes agree to stop a few steps later; the log at the end of an epoch has nothing new.
        if self._over or "train_loss" not in scalars:
            return
        loss = scalars["train_loss"]
        if not math.isfinite(loss):
            self._stop("the loss is not finite any more")
        self.losses.append(loss)
        self._mean = self._smoothing * self._mean + (1 - self._smoothing) * loss
        # Without the correction the mean would begin at 0.
        self.smoothed.append(self._mean / (1 - self._smoothing ** len(self.losses)))
        if self.smoothed[-1] > self._divergence * min(self.smoothed) > 0:
            self._stop("the loss diverges")

    def _stop(self, reason: str) -> NoReturn:
        self._over = True
        raise StopTrainingError(f"the sweep ends: {reason}")


@contextmanager
def _everything_put_back(trainer: "Trainer") -> Iterator[None]:
    """Leave the trainer, and what belongs to it, as it was found."""
    attributes = dict(vars(trainer))
    tracked = trainer.tracked
    states = deepcopy(tracked.state_dict())
    weights = _copies(trainer)
    optimizers = [(optimizer, deepcopy(optimizer.state_dict())) for optimizer in trainer.optimizers().values()]
    precision = deepcopy(trainer.precision.state_dict())
    # What the sweep tracks, such as how it makes its updates, is not the trainer's.
    trainer.tracked = tracked.copy()
    try:
        with keep_modes(trainer.model), RandomState().kept():
            yield
    finally:
        vars(trainer).clear()
        vars(trainer).update(attributes)
        tracked.load_state_dict(states)
        _write_back(trainer, weights)
        for optimizer, state in optimizers:
            optimizer.load_state_dict(state)
        trainer.precision.load_state_dict(precision)


def _copies(trainer: "Trainer") -> dict[str, Tensor]:
    model = trainer.model
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


@torch.no_grad()
def _write_back(trainer: "Trainer", copies: dict[str, Tensor]) -> None:
    model = trainer.model
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        tensor.copy_(copies[name])


def _check(
    min_lr: float, max_lr: float, steps: int, smoothing: float, divergence: float, train_arguments: dict[str, Any]
) -> None:
    if not 0 < min_lr < max_lr:
        raise ConfigError(f"find_learning_rate: min_lr={min_lr} must be above 0 and below max_lr={max_lr}")
    if steps < 2:
        raise ConfigError(f"find_learning_rate: steps={steps} must be at least 2")
    if not 0 <= smoothing < 1:
        raise ConfigError(f"find_learning_rate: smoothing={smoothing} must be at least 0 and below 1")
    if divergence <= 1:
        raise ConfigError(f"find_learning_rate: divergence={divergence} must be above 1")
    taken = sorted(SET_BY_THE_SWEEP & set(train_arguments))
    if taken:
        raise ConfigError(f"find_learning_rate decides {taken} itself; leave them out")
