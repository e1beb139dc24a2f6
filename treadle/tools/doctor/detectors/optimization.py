"""A schedule that is over too early, never arrives, or is moved by somebody else as well."""

import copy
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import some_of
from treadle.loop.oom_retry import BeforeAttempt, split_batch
from treadle.ops.eval_mode import keep_modes
from treadle.tools.doctor.detectors.base import Detector
from treadle.tools.doctor.findings import Finding

# Gradients that depend on how a batch is cut into micro-batches


TOLERANCE = 1e-3
"""The relative difference of two gradients that rounding does not explain."""


class Accumulation(Detector):
    """Computes the gradient of one window twice, cut in two ways; both must be the same."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._difference: float | None = None
        self._ratio = 1.0

    def before_update(self, phase: Any, window: list[Any]) -> None:
        """Compare, before the first update, and leave everything as it was."""
        if self._difference is not None or phase.reuse or not window:
            return
        parts = [part for batch in window for part in split_batch(batch, 2)]
        if len(parts) == len(window) or self.trainer.this_run.execution.replays or self.trainer.processes.distributed:
            self._difference = 0.0
            return
        as_is, finer = self._gradient(phase, window), self._gradient(phase, parts)
        if as_is is None or finer is None or not as_is.norm():
            self._difference = 0.0
            return
        self._difference = float((as_is - finer).norm() / as_is.norm())
        self._ratio = float(finer.norm() / as_is.norm())

    def _gradient(self, phase: Any, window: list[Any]) -> Tensor | None:
        """Return the gradient of a window, without dropout, as one vector."""
        trainer, model = self.trainer, self.trainer.model
        before, generators = BeforeAttempt(model, trainer._loss_tracker), torch.get_rng_state()
        try:
            with keep_modes(model):
                disable_randomness(model)
                # Silent: this pass is nobody's business but the doctor's.
                trainer.calculate_gradients(replace(phase, silent=True), window)
            if trainer.this_run.updater.scale.pending or trainer.this_run.shared_loss.module is not None:
                trainer.normalise_gradients(phase)
            found = [one.grad.detach().double().flatten() for one in phase.trained if _is_dense(one.grad)]
            return torch.cat(found).clone() if found else None
        finally:
            trainer.optimizer_zero_grad()
            before.restore()
            torch.set_rng_state(generators)

    def findings(self) -> Iterable[Finding]:
        """Return whether the gradient depended on the cut."""
        if self._difference is not None and self._difference > TOLERANCE:
            yield Finding(
                "accumulation",
                f"the gradient of a batch changes by {self._difference:.0%} (its norm to {self._ratio:.2f} of it) when "
                "its micro-batches are cut in two. If the loss is a mean over tokens, return their number as "
                "num_items_in_batch from calculate_train_batch_loss; if it is a sum, give loss_reduction='sum'",
            )


def disable_randomness(model: nn.Module) -> None:
    """Put everything that is random, or looks at the whole batch, into the mode for evaluation."""
    for module in model.modules():
        if isinstance(module, (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)):
            module.training = False


def _is_dense(gradient: Tensor | None) -> bool:
    return gradient is not None and not gradient.is_sparse


# Weights that do not learn: no gradient reaches them, no optimizer has them, or nothing moves


class WeightUpdates(Detector):
    """Follows the gradient and the value of every parameter that is to learn."""

    def begin(self) -> None:
        """Note the weights."""
        self._before = {name: one.detach().clone() for name, one in self._learning()}
        self._reached: set[str] = set()
        self._touched: set[str] = set()
        self._updates = 0

    def _learning(self) -> list[tuple[str, Tensor]]:
        return [(name, one) for name, one in self.trainer.model.named_parameters() if one.requires_grad]

    def after_gradients(self) -> None:
        """Note which parameters have a gradient, and which one that is not zero."""
        self._updates += 1
        for name, parameter in self._learning():
            if parameter.grad is not None:
                self._touched.add(name)
                gradient = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
                if gradient.count_nonzero():
                    self._reached.add(name)

    def findings(self) -> Iterable[Finding]:
        """Return what learns nothing, and why."""
        if not self._updates:
            return
        held = {id(one) for group in self._groups() for one in group["params"]}
        missing = [name for name, one in self._learning() if id(one) not in held]
        optimized = [(name, one) for name, one in self._learning() if id(one) in held]
        if missing:
            yield Finding(
                "not_optimized",
                f"no optimizer has {some_of(missing)}; build the optimizer from model.parameters() once the model is "
                "complete, or freeze them with requires_grad_(False)",
            )
        untouched = [name for name, _ in optimized if name not in self._touched]
        if untouched:
            yield Finding(
                "no_gradient",
                f"the loss does not depend on {some_of(untouched)}: the forward pass leaves them out, or detaches "
                "what comes from them; use them, or freeze them with requires_grad_(False)",
            )
        zero = [name for name, _ in optimized if name in self._touched - self._reached]
        if zero:
            yield Finding(
                "no_gradient",
                f"the gradient of {some_of(zero)} is zero in each of {self._updates} steps: look for units that "
                "never answer, weights of zero above them, or a loss that does not see them",
            )
        yield from self._still([name for name, _ in optimized if name in self._reached])

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.trainer.optimizers().values() for group in optimizer.param_groups]

    def _still(self, names: list[str]) -> Iterable[Finding]:
        now = dict(self._learning())
        if names and all(is_unchanged(self._before[name], now[name].detach()) for name in names):
            rates = sorted({float(group["lr"]) for group in self._groups() if "lr" in group})
            yield Finding(
                "no_learning",
                f"the weights are as good as the same after {self._updates} updates, though all of them have "
                f"gradients; the learning rate is {some_of([f'{rate:g}' for rate in rates])}",
            )


def is_unchanged(before: Tensor, after: Tensor) -> bool:
    """Whether weights have not moved by anything that matters beside the largest of them, or beside one."""
    scale = max(1.0, float(before.abs().max())) if before.numel() else 1.0
    return bool(((after - before).abs() <= 1e-9 * scale).all())


LOOK_AHEAD = 20
"""How many times the length of the run a schedule is followed."""
EARLY, LATE = 0.8, 1.25
"""Between these shares of the run a decay may end."""
MOST_STEPS = 200_000


class Schedule(Detector):
    """Follows the schedule to its end on a copy, and compares the run's own steps with it."""

    light = True

    def begin(self) -> None:
        """Follow a copy of the schedule through the run and beyond."""
        self._rates: list[float] = []
        self._seen: list[float] = []
        config = self.trainer.run_config
        self._total = None if config is None else config.max_num_train_steps
        if self.trainer.scheduler is not None and self._total and self.trainer.this_run.schedule.by_step:
            self._rates = _followed(self.trainer.scheduler, min(LOOK_AHEAD * self._total, MOST_STEPS))

    def after_update(self) -> None:
        """Note the rate after this update."""
        if self._rates:
            self._seen.append(_rate(self.trainer.scheduler))

    def findings(self) -> Iterable[Finding]:
        """Return how the schedule fits the run."""
        if not self._rates or self._total is None:
            return
        if any(seen != wanted for seen, wanted in zip(self._seen, self._rates[1:], strict=False)):
            yield Finding(
                "schedule_length",
                f"after {len(self._seen)} updates the learning rate is {self._seen[-1]:.4g}, where the schedule by "
                f"itself would be at {self._rates[len(self._seen)]:.4g}: something else moves it too; leave "
                "its steps to the trainer",
            )
            return
        name, peak = type(self.trainer.scheduler).__name__, max(self._rates[: self._total + 1])
        end = end_of(self._rates)
        if end is None or self._rates[end] > 0.5 * peak:
            return
        if end < EARLY * self._total:
            yield Finding(
                "schedule_length",
                f"{name} reaches its lowest rate at step {end} of {self._total}; it counts steps, not epochs: give it "
                "the length of the run, as TrainerPlaceholderValues has it",
            )
        elif end > LATE * self._total:
            yield Finding(
                "schedule_length",
                f"{name} would reach its lowest rate at step {end}, but the run ends at {self._total}, with "
                f"{self._rates[self._total] / peak:.0%} of the highest rate; give it the length of the run, as "
                "TrainerPlaceholderValues has it",
            )


def _rate(scheduler: object) -> float:
    return float(scheduler.optimizer.param_groups[0]["lr"])  # type: ignore[attr-defined]


def _followed(scheduler: object, steps: int) -> list[float]:
    """Return the rate before the first and after each of some steps of a copy; fewer if it refuses to go on."""
    # The optimizer comes along, without its weights: only its groups are looked at.
    own = copy.copy(scheduler)
    own.__dict__ = copy.deepcopy({key: value for key, value in vars(scheduler).items() if key != "optimizer"})
    optimizer = copy.copy(scheduler.optimizer)  # type: ignore[attr-defined]
    optimizer.param_groups = [
        {key: copy.deepcopy(value) for key, value in group.items() if key != "params"} | {"params": group["params"]}
        for group in optimizer.param_groups
    ]
    own.optimizer = optimizer  # type: ignore[attr-defined]
    rates = [_rate(own)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps):
            try:
                own.step()  # type: ignore[attr-defined]
            except (ValueError, IndexError):
                break
            rates.append(_rate(own))
    return rates


def end_of(rates: list[float]) -> int | None:
    """Return where rates, once they were highest, first come to their lowest: the end of a decay, or of its first turn.

    None if they fall for as long as they are known.

    >>> end_of([0.5, 1.0, 0.5, 0.0, 0.0]), end_of([1.0, 0.5, 0.0, 0.5, 1.0]), end_of([0.0, 0.5, 1.0, 1.0])
    (3, 2, 2)
    >>> end_of([1.0, 0.5, 0.25, 0.125])
    """
    # A schedule that goes up and down reckons each rate from the last one: its later tops may be higher by rounding.
    highest = max(rates)
    top = next(index for index, rate in enumerate(rates) if rate >= highest - 1e-6 * abs(highest))
    after = rates[top:]
    spread = highest - min(after)
    place = next(index for index, rate in enumerate(after) if rate <= min(after) + 1e-9 * spread)
    falls_on = place == len(after) - 1 > 0 and after[-2] > after[-1]
    return None if falls_on else top + place
