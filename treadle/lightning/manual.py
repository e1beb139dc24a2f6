"""The core trainer behind `StepTrainer` for models that make their updates themselves."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from treadle.data import Batch, size_of
from treadle.errors import ConfigError
from treadle.lightning.core import StepCore
from treadle.lightning.module import StepModel
from treadle.parallel.grad_allreduce import GradientAverager
from treadle.phase import Phase, optimizer_params

EAGER = "its training_step runs eagerly, as it is written"
INSTEAD = {
    "gradient_accumulation_steps": (1, "call optimizer.step() in every so many calls of training_step"),
    "clip_norm": (None, "call self.clip_gradients(optimizer, gradient_clip_val=...) before optimizer.step()"),
    "gradient_clip_value": (None, "call self.clip_gradients(..., gradient_clip_algorithm='value')"),
    "microbatch": ("fixed", "choose a batch size that fits"),
    "on_nonfinite": ("raise", "leave a bad update out in training_step"),
    "offload_optimizer": (False, "leave it out"),
    "compile": (False, EAGER),
}
"""Options that need updates by the trainer, each with the value that does nothing and what to do instead."""


def check_options(model: StepModel, options: Mapping[str, Any]) -> None:
    """Refuse options that would have no effect where a model makes its updates itself.

    Raises:
        ConfigError: There is one.
    """
    reasons = {name: reason for name, (idle, reason) in INSTEAD.items() if options.get(name, idle) != idle}
    if options.get("execution", "auto") not in ("auto", "eager"):
        reasons["execution"] = EAGER
    for name, reason in reasons.items():
        raise ConfigError(
            f"StepTrainer({name}={options[name]!r}): {type(model).__name__} makes its updates itself "
            f"(automatic_optimization=False); {reason}"
        )


class ManualCore(StepCore):
    """Trains a `StepModel` whose `training_step` makes the updates: a step of the run is one call of it.

    Args:
        model: The model.
        optimizers: What `training_step` steps.
        schedules: Their schedules, which it moves.
        **options: Further arguments of `treadle.Trainer`.
    """

    def __init__(
        self, model: StepModel, optimizers: Sequence[Optimizer], schedules: Sequence[Any], **options: Any
    ) -> None:
        check_options(model, options)
        named = {f"optimizer_{place}": one for place, one in enumerate(optimizers)}
        super().__init__(model, named, **{**options, "execution": "eager"})
        if self.precision.kind == "fp16":
            raise ConfigError(
                f"precision='fp16' scales losses, and {type(model).__name__} makes its updates itself "
                "(automatic_optimization=False); use 'bf16' or 'fp32'"
            )
        self._schedules = list(schedules)
        self.track(**{f"schedule_{place}": one for place, one in enumerate(self._schedules)})
        self._losses: list[Tensor] = []
        self._learning: dict[Tensor, bool] = {}
        self._watched: list[RemovableHandle] = []
        self._updates = 0

    @property
    def schedules(self) -> list[Any]:
        """The schedules of the optimizers."""
        return self._schedules

    # An epoch ------------------------------------------------------------------------------------------------

    def train_epoch_start(self) -> None:
        """Begin an epoch, and look whether an optimizer steps in it."""
        super().train_epoch_start()
        self._updates = 0
        self._watched = [one.register_step_post_hook(self._count) for one in self.optimizers().values()]

    def train_epoch_end(self) -> None:
        """End an epoch; say so if no optimizer stepped in it."""
        for handle in self._watched:
            handle.remove()
        if not self._updates:
            name = type(self._step_model).__name__
            self.print(f"{name}.training_step stepped no optimizer in this epoch: nothing was learnt")
        super().train_epoch_end()

    def _count(self, *step: Any) -> None:
        self._updates += 1

    # A step --------------------------------------------------------------------------------------------------

    def update(self, phase: Phase, window: list[Batch]) -> None:
        """Have `training_step` make the updates of one batch."""
        (batch,) = window
        updater, samples = self.this_run.updater, size_of(batch)
        updater.phase, updater.samples = phase, samples
        self.fire("on_train_step_start", batch=batch)
        self._losses.clear()
        with self.precision.autocast():
            output = self.calculate_train_batch_loss(batch)
        if output["loss"] is not None:
            self.this_run.losses.update(output["loss"], samples)
        self.fire("on_train_step_end", batch=batch, batch_output=output, step=phase.stream.drawn - 1)
        if self.this_run.metrics.kept:
            self.update_metrics(batch, output)

    def _output(self, found: Any, batch: Batch, name: str) -> dict[str, Any]:
        """Return what a step made; the loss of one that returns none is the sum of what it has learnt from."""
        loss = found.get("loss") if isinstance(found, Mapping) else found
        if loss is not None or name != "training_step":
            return super()._output(found, batch, name)
        total = torch.stack(self._losses).sum() if self._losses else None
        return {"loss": total, "model_outputs": found, "batch_size": size_of(batch)}

    # What the step calls -------------------------------------------------------------------------------------

    def manual_backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss."""
        self._losses.append(loss.detach())
        self.backward_step(loss)

    def toggle(self, optimizer: Optimizer) -> None:
        """Have gradients for the weights of one optimizer only, until `untoggle`."""
        self.untoggle()
        everything = [one for other in self.optimizers().values() for one in optimizer_params(other)]
        self._learning = {one: one.requires_grad for one in everything}
        for one in everything:
            one.requires_grad_(False)
        for one in optimizer_params(optimizer):
            one.requires_grad_(self._learning[one])

    def untoggle(self) -> None:
        """Have gradients for the weights that had some before `toggle`."""
        for one, learns in self._learning.items():
            one.requires_grad_(learns)
        self._learning = {}

    def clip_optimizer(self, optimizer: Optimizer, limit: float, algorithm: str) -> None:
        """Bound the gradients of an optimizer's weights, as they are on all processes together."""
        learnt = optimizer_params(optimizer)
        GradientAverager(self.processes).average(learnt)
        clip = torch.nn.utils.clip_grad_norm_ if algorithm == "norm" else torch.nn.utils.clip_grad_value_
        clip(learnt, limit)
