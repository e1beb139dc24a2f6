"""Optimization: gradients that depend on the cut, weights that do not learn or run away, decay, and schedules."""

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


TOLERANCE, COARSE = 1e-3, 5e-2
"""The relative difference of two gradients that rounding does not explain: of 32 bits, and of fewer."""


class Accumulation(Detector):
    """Computes the gradient of one window twice, cut in two ways; both must be the same."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._cut = False
        self._difference: float | None = None
        self._ratio = 1.0

    def before_update(self, phase: Any, window: list[Any]) -> None:
        """Compare, before the first update, and leave everything as it was."""
        # A loss that compares the samples of a batch changes with any cut; nobody cuts this one.
        self._cut = self._cut or len(window) > 1 or self.trainer.settings.microbatch != "fixed"
        if self._difference is not None or phase.reuse or not window or not self._cut:
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
        before, generators = (
            BeforeAttempt(model, trainer._loss_tracker, trainer.this_run.metrics),
            torch.get_rng_state(),
        )
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
        bound = TOLERANCE if self.trainer.precision.plain else COARSE
        if self._difference is not None and self._difference > bound:
            yield Finding(
                "accumulation",
                f"the gradient of a batch changes by {self._difference:.0%} (its norm to {self._ratio:.2f} of it) when "
                "its micro-batches are cut in two",
                "if the loss is a mean over tokens, return their number as num_items_in_batch from "
                "calculate_train_batch_loss; if it is a sum, pass loss_reduction='sum' to the trainer",
            )


def disable_randomness(model: nn.Module) -> None:
    """Put everything that is random, or looks at the whole batch, into the mode for evaluation."""
    for module in model.modules():
        if isinstance(module, (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)):
            module.training = False


def _is_dense(gradient: Tensor | None) -> bool:
    return gradient is not None and not gradient.is_sparse


# Weights that do not learn: no gradient reaches them, no optimizer has them, or nothing moves


TOO_SLOW = 1e-4
"""A rate is too small if all the steps of the run, as long as those that were seen, move no weight by this share."""


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
        if not self._before and any(True for _ in self.trainer.model.parameters()):
            yield Finding(
                "frozen",
                "every parameter of the model is frozen (requires_grad=False), so that nothing can learn",
                "call requires_grad_(True) on the layers that are to learn, after the others are frozen",
            )
        if not self._updates:
            return
        held = {id(one) for group in parameter_groups(self.trainer) for one in group["params"]}
        missing = [name for name, one in self._learning() if id(one) not in held]
        optimized = [(name, one) for name, one in self._learning() if id(one) in held]
        if missing:
            yield Finding(
                "not_optimized",
                f"no optimizer has {some_of(missing)}",
                "build the optimizer from model.parameters() once the model is complete, or freeze them with "
                "requires_grad_(False)",
            )
        untouched = [name for name, _ in optimized if name not in self._touched]
        if untouched:
            yield Finding(
                "no_gradient",
                f"the loss does not depend on {some_of(untouched)}: the forward pass leaves them out, or detaches "
                "what comes from them",
                "use them, or freeze them with requires_grad_(False)",
            )
        zero = [name for name, _ in optimized if name in self._touched - self._reached]
        if zero:
            yield Finding(
                "no_gradient",
                f"the gradient of {some_of(zero)} is zero in each of {self._updates} steps",
                "look for dead units (a ReLU that is always 0), weights of zero above them, or a loss that does not "
                "depend on what they compute",
            )
        yield from self._still([name for name, _ in optimized if name in self._reached])

    def _still(self, names: list[str]) -> Iterable[Finding]:
        now = dict(self._learning())
        rates = sorted({float(group["lr"]) for group in parameter_groups(self.trainer) if "lr" in group})
        shown = some_of([f"{rate:g}" for rate in rates])
        if names and all(is_unchanged(self._before[name], now[name].detach()) for name in names):
            yield Finding(
                "no_learning",
                f"the weights are as good as the same after {self._updates} updates, though all of them have "
                f"gradients; the learning rate is {shown}",
                "raise the learning rate: treadle.find_learning_rate(...) looks for one",
            )
        elif names and self.trainer.scheduler is None and (steps := self.trainer.progress.step):
            moved = max(_movement(self._before[name], now[name].detach()) for name in names)
            config = self.trainer.run_config
            total = (config.max_num_train_steps if config is not None else None) or steps
            if moved / steps * total < TOO_SLOW:
                yield Finding(
                    "no_learning",
                    f"{steps} updates moved no weight by more than {moved:.1g} of its size, which comes to "
                    f"{moved / steps * total:.1g} in all {total} updates of the run; the learning rate is {shown}",
                    "raise the learning rate: treadle.find_learning_rate(...) looks for one",
                )


def parameter_groups(trainer: Any) -> list[dict[str, Any]]:
    """Return the parameter groups of all optimizers."""
    return [group for optimizer in trainer.optimizers().values() for group in optimizer.param_groups]


def is_unchanged(before: Tensor, after: Tensor) -> bool:
    """Whether weights have not moved by anything that matters beside the largest of them, or beside one."""
    scale = max(1.0, float(before.abs().max())) if before.numel() else 1.0
    return bool(((after - before).abs() <= 1e-9 * scale).all())


def _movement(before: Tensor, after: Tensor) -> float:
    """Return how far weights have moved, as a share of their size; of weights that began at zero, beside 1."""
    size = float(before.double().norm())
    return float((after - before).double().norm()) / (size or 1.0)


# Steps that are too long


WORSE = 3.0
"""How many times the loss at the beginning that of the same batches must be in the end. Both are computed on the same
data, so that chance has no part in it; a warm-up, momentum or a large first step do not come near."""
KEPT = 3
"""Windows that are kept to be looked at again."""


class Divergence(Detector):
    """Computes the loss of the last batches again, with the weights now and with those of the beginning."""

    def begin(self) -> None:
        """Note the weights."""
        self._start = [one.detach().clone() for one in self.trainer.model.parameters()]
        self._kept: list[tuple[Any, list[Any]]] = []
        self._names: set[str] = set()
        self._found: tuple[float, float, float] | None = None

    def before_update(self, phase: Any, window: list[Any]) -> None:
        """Keep the last windows."""
        self._names.add(phase.name)
        self._kept = [*self._kept, (phase, window)][-KEPT:] if window else self._kept

    def after_update(self) -> None:
        """Compare, after the last update."""
        trainer = self.trainer
        is_last = trainer.progress.step == trainer.this_run.due.last_step
        # Players who take turns make each other's loss larger; shards are in several processes.
        if is_last and len(self._names) == 1 and not trainer.processes.distributed and self._kept:
            self._found = self._compared()

    def _compared(self) -> tuple[float, float, float]:
        """Return the loss with the first weights and with the present ones, and how far apart both are."""
        model = self.trainer.model
        parameters = list(model.parameters())
        now = [one.detach().clone() for one in parameters]
        before, generators = (
            BeforeAttempt(model, self.trainer._loss_tracker, self.trainer.this_run.metrics),
            torch.get_rng_state(),
        )
        try:
            with torch.no_grad(), keep_modes(model):
                disable_dropout(model)
                after = self._loss()
                for one, value in zip(parameters, self._start, strict=True):
                    one.copy_(value)
                first = self._loss()
        finally:
            with torch.no_grad():
                for one, value in zip(parameters, now, strict=True):
                    one.copy_(value)
            before.restore()
            torch.set_rng_state(generators)
        size = sum(float(one.double().square().sum()) for one in self._start)
        apart = sum(float((one - two).double().square().sum()) for one, two in zip(now, self._start, strict=True))
        return first, after, (apart / max(size, 1e-30)) ** 0.5

    def _loss(self) -> float:
        """Return the mean loss of the windows that were kept."""
        with self.trainer.precision.autocast():
            losses = [float(phase.loss(batch)["loss"]) for phase, window in self._kept for batch in window]
        return sum(losses) / len(losses)

    def findings(self) -> Iterable[Finding]:
        """Return whether training made the loss much larger."""
        if self._found is None:
            return
        first, after, moved = self._found
        if after > first + (WORSE - 1) * abs(first) + 0.1 or (moved > 1 and after != after):
            rates = sorted({float(group["lr"]) for group in parameter_groups(self.trainer) if "lr" in group})
            yield Finding(
                "diverges",
                f"training makes it worse: the loss of the same batches was {first:.4g} with the first weights and is "
                f"{after:.4g} after {self.trainer.progress.step} updates, which moved the weights by "
                f"{moved:.1g} times their size; the learning rate is {some_of([f'{rate:g}' for rate in rates])}",
                "lower the learning rate, by a factor of 10 at first; treadle.find_learning_rate(...) looks for one",
            )


def disable_dropout(model: nn.Module) -> None:
    """Let nothing be dropped."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.training = False


# Weight decay that is stronger than what is learnt


DECAY_PER_STEP = 0.05
"""The share of its size that a weight may lose in a step."""
DECAY_OVER_GRADIENT = 10.0
"""How many times the gradient its decay may be, where both are added."""


class WeightDecay(Detector):
    """Compares the decay of weights with their gradients."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._ratios: list[float] = []
        self._lost = 0.0

    def after_gradients(self) -> None:
        """Note what decay does in this update."""
        added = decay = 0.0
        for optimizer in self.trainer.optimizers().values():
            for group in optimizer.param_groups:
                rate, share = float(group.get("lr", 0.0)), float(group.get("weight_decay", 0.0) or 0.0)
                if not share:
                    continue
                self._lost = max(self._lost, rate * share)
                if not _is_decoupled(optimizer, group):
                    held = [one for one in group["params"] if one.grad is not None and not one.grad.is_sparse]
                    decay += sum(float((share * one.detach()).double().square().sum()) for one in held)
                    added += sum(float(one.grad.double().square().sum()) for one in held)
        if decay:
            self._ratios.append((decay / max(added, 1e-30)) ** 0.5)

    def findings(self) -> Iterable[Finding]:
        """Return whether decay is all that matters."""
        shares = sorted({float(group.get("weight_decay", 0.0) or 0.0) for group in parameter_groups(self.trainer)})
        shown = some_of([f"{share:g}" for share in shares if share])
        remedy = "use a smaller weight_decay: 0.01 to 0.1 with AdamW, 1e-5 to 1e-3 with SGD and Adam"
        if self._lost > DECAY_PER_STEP:
            yield Finding(
                "weight_decay",
                f"weight decay takes {self._lost:.0%} of each weight in every step; weight_decay is {shown}",
                remedy,
            )
        elif self._ratios and (usual := sorted(self._ratios)[len(self._ratios) // 2]) > DECAY_OVER_GRADIENT:
            yield Finding(
                "weight_decay",
                f"weight decay is {usual:.0f} times as strong as the gradient; weight_decay is {shown}",
                remedy,
            )


def _is_decoupled(optimizer: Any, group: dict[str, Any]) -> bool:
    """Whether decay is no part of the gradient, as in AdamW."""
    return bool(group.get("decoupled_weight_decay")) or type(optimizer).__name__ in ("AdamW", "Lion", "Adafactor")


# A schedule that is over too early, never arrives, or is moved by somebody else as well


LOOK_AHEAD = 20
"""How many times the length of the run a schedule is followed."""
EARLY, LATE = 0.8, 1.25
"""Between these shares of the run a decay may end."""
ARRIVED = 0.1
"""A decay has arrived where the rate is at most this share of the highest: what follows is a longer tail."""
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
                f"itself would be at {self._rates[len(self._seen)]:.4g}: something else moves it too",
                "leave its steps to the trainer",
            )
            return
        name, peak = type(self.trainer.scheduler).__name__, max(self._rates[: self._total + 1])
        end = decay_end(self._rates)
        if end is None or self._rates[end] > 0.5 * peak:
            return
        if end < EARLY * self._total:
            yield Finding(
                "schedule_length",
                f"{name} reaches its lowest rate at step {end} of {self._total}; it counts steps, not epochs",
                "give it the length of the run: TrainerPlaceholderValues stand for it",
            )
        elif end > LATE * self._total and self._rates[self._total] > ARRIVED * peak:
            yield Finding(
                "schedule_length",
                f"{name} would reach its lowest rate at step {end}, but the run ends at {self._total}, with "
                f"{self._rates[self._total] / peak:.0%} of the highest rate",
                "give it the length of the run: TrainerPlaceholderValues stand for it",
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


def decay_end(rates: list[float]) -> int | None:
    """Return where rates, once they were highest, first come to their lowest: the end of a decay, or of its first turn.

    None if they fall for as long as they are known.

    >>> decay_end([0.5, 1.0, 0.5, 0.0, 0.0]), decay_end([1.0, 0.5, 0.0, 0.5, 1.0]), decay_end([0.0, 0.5, 1.0, 1.0])
    (3, 2, 2)
    >>> decay_end([1.0, 0.5, 0.25, 0.125])
    """
    # A schedule that goes up and down reckons each rate from the last one: its later tops may be higher by rounding.
    highest = max(rates)
    top = next(index for index, rate in enumerate(rates) if rate >= highest - 1e-6 * abs(highest))
    after = rates[top:]
    spread = highest - min(after)
    place = next(index for index, rate in enumerate(after) if rate <= min(after) + 1e-9 * spread)
    falls_on = place == len(after) - 1 > 0 and after[-2] > after[-1]
    return None if falls_on else top + place
