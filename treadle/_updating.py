"""One update: the gradient of a window, and what is done with it."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from treadle._running import Running
from treadle.data import Batch
from treadle.errors import DataError
from treadle.gradients import forget_gradients
from treadle.loop import Updater
from treadle.loss_items import count_targets
from treadle.losses import default_loss
from treadle.parallel import GradientAverager
from treadle.phase import Phase


class Updating(Running):
    """The verbs of an update, each small enough to be overridden alone."""

    def create_updater(self) -> Updater:
        """Return what makes the updates of a run by these verbs."""
        own: Any = self
        return Updater(own, own_backward=type(self).backward_step is not Updating.backward_step)

    def update(self, phase: Phase, window: list[Batch]) -> None:
        """Make one update from the micro-batches in `window`."""
        self.calculate_gradients(phase, window)
        self.apply_gradients(phase)

    def calculate_gradients(self, phase: Phase, window: list[Batch]) -> None:
        """Accumulate the gradient of `window`; the host never waits for the device."""
        self.this_run.updater.calculate(phase, window)

    def apply_gradients(self, phase: Phase) -> None:
        """Divide by the window's weight over all ranks, clip, step, schedule, zero."""
        self.this_run.updater.apply(phase)

    def normalise_gradients(self, phase: Phase) -> None:
        """Make the gradient that of one batch with all samples of the window, over all ranks."""
        self.this_run.updater.normalise(phase)

    def _clip_gradients(self) -> None:
        """Bound the gradient of the update, once, over all parameters of its optimizer."""
        self.this_run.updater.clip(self.settings.clip_norm, self.settings.clip_value)

    def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
        """Return the loss of one micro-batch.

        Returns:
            A dict with "loss", "model_outputs" and "batch_size"; other entries reach the callbacks. If the loss
            is a mean over something else than samples, such as tokens, "num_items_in_batch" says over how many.
        """
        output = default_loss(self.model, self.precision.for_loss(self.loss_func), batch)
        return count_targets(output, self.loss_func, batch) if self.this_run.updater.scale.pending else output

    def backward_step(self, loss: Tensor) -> None:
        """Add the gradient of `loss`, which is already this micro-batch's share of the update."""
        self.add_gradient(loss)

    def add_gradient(self, loss: Tensor) -> None:
        """Add the gradient of `loss`, scaled where the precision wants it, to those of what learns now."""
        if self.precision.scaler is not None:
            loss = self.precision.scale(loss)
        phase = self.this_run.updater.phase
        inputs = None if phase is None else phase.parameters
        if inputs is not None and self.this_run.shared_loss.module is not None:
            # What the losses of the window are means over is collected there too.
            inputs = [*inputs, self.this_run.shared_loss.weight]
        if self.precision.products.expected and not self.precision.plain:
            self.precision.products.backward(loss, inputs)
            return
        loss.backward(inputs=inputs)  # type: ignore[no-untyped-call]

    def complete_gradients(self, optimizer: Optimizer, parameters: Iterable[Any]) -> None:
        """Make the gradients of `parameters` those that `optimizer` will step by, so that they can be clipped.

        In a loop of the user's that is their mean over the processes, which is taken once more when it steps.
        """
        if not self.in_own_loop:
            GradientAverager(self.processes).average(parameters)
        self.precision.unscale(optimizer)

    def _perform_forward_and_backward_passes(self, batch: Batch, step: int) -> None:
        """Add the gradient of one micro-batch, for loops of the user's; `step` is its number in the epoch, from 0.

        The loss is divided by the micro-batches of its update, of which the last of an epoch may have fewer.
        """
        output = self.calculate_train_batch_loss(batch)
        parts, length = self.settings.accumulation, getattr(self._train_dataloader, "length", None)
        if length is not None:
            parts = min(parts, length - step // parts * parts)
        self._update_loss_tracker(output["loss"], output["batch_size"])
        self.fire("on_train_step_end", batch=batch, batch_output=output, step=step)
        self.backward_step(output["loss"] if parts == 1 else output["loss"] / parts)

    def _update_loss_tracker(self, loss: Any, batch_size: Any) -> None:
        """Add a loss to the mean of the epoch; it stays on the device until a log is due."""
        self._loss_tracker.update(loss, batch_size)

    def _add_epoch_loss_to_run_history(self, metric_name: str = "train_loss_epoch") -> None:
        """Record the mean loss of the epoch, over the samples of all processes, under `metric_name`."""
        total, count = self.processes.reduce([self._loss_tracker.total_loss, self._loss_tracker.running_count])
        if count:
            self.run_history.update_metric(metric_name, total / count)
        elif metric_name != "train_loss_epoch":
            raise DataError(
                f"{metric_name} cannot be recorded: no loss was given to _update_loss_tracker; check the data"
            )

    def optimizer_step(self) -> None:
        """Update the weights."""
        self.this_run.updater.step()

    def scheduler_step(self) -> None:
        """Move the schedule on: by one update, or, where a metric drives it, by that metric's latest value."""
        phase = self.this_run.updater.phase
        scheduler = self.scheduler if phase is None or not self.scheduled_by_step else phase.scheduler
        metric = self.settings.metric_of(scheduler, evaluates=self._eval_dataloader is not None)
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(self.run_history.get_latest_metric(metric))

    def optimizer_zero_grad(self) -> None:
        """Forget the gradients; with several optimizers all of them, since a loss may reach another's weights."""
        for optimizer in self._optimizers:
            forget_gradients(optimizer)
        if self.parallel.spreads:
            self.parallel.drop_gradients()
