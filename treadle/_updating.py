"""One update: the gradient of a window, and what is done with it."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.compiler import set_stance
from torch.optim import Optimizer

from treadle._running import Running
from treadle.data import Batch, size_of
from treadle.direct_step import direct_step, refuse_closures
from treadle.errors import DataError
from treadle.gradients import clip_by_norm, clip_by_value, forget_gradients, gradients_of, norm_of
from treadle.loss_items import MeansSeen, count_targets, counted_in, criterion_of, items_in_window, says_items
from treadle.losses import check_loss, default_loss, name_of
from treadle.nonfinite import UpdateGate
from treadle.parallel import GradientAverager
from treadle.parallel.stage_loss import StageLoss
from treadle.phase import LossVerb, Phase, held_by
from treadle.precision import ScaledPasses

NO_CONTEXT: AbstractContextManager[Any] = nullcontext()


class Updating(Running):
    """The verbs of an update, each small enough to be overridden alone."""

    def update(self, phase: Phase, window: list[Batch]) -> None:
        """Make one update from the micro-batches in `window`."""
        self.calculate_gradients(phase, window)
        self.apply_gradients(phase)

    def calculate_gradients(self, phase: Phase, window: list[Batch]) -> None:
        """Accumulate the gradient of `window`; the host never waits for the device."""
        self._phase = phase
        self._updated = False
        if self.parallel.in_stages:
            self._calculate_in_stages(phase, window)
            return
        heard = not phase.silent
        gate = self._gate_in_use if self._gate is not None and heard else None
        if gate is not None:
            gate.begin()
        listening = self.callback_handler.table
        parts = len(window)
        self._window_samples = 0
        shared = self.this_run.shared_loss
        if parts > 1 or self._scale.pending or shared.module is not None:
            self._scale.begin(parts)
        plain = shared.module is None and self.precision.plain and (self.recording or self.progress.visit_step > 0)
        verb = phase.loss if self._verbs is None else self._verbs.of(phase.loss)
        for position, batch in enumerate(window):
            if heard and listening["on_train_step_start"]:
                self.fire("on_train_step_start", batch=batch)
            # The common case goes straight to the verb: what lies between is a good part of a small step.
            output, rider = (verb(batch), None) if plain else self._loss_of(phase, verb, batch, position == parts - 1)
            loss = output["loss"]
            weight = self._weight(batch, output) if phase.stream.padded != position else 0
            several = parts > 1 or rider is not None
            counted = counted_in(output) if several and phase.stream.padded != position else None
            # What is recorded is a mean: a sum is divided by what it is over.
            if heard:
                recorded = weight if counted is None else counted.recorded(weight)
                self._loss_tracker.update(loss if self._scale.mean else self._mean_loss(loss, weight), recorded)
            if gate is not None and gate.watches:
                gate.note(loss)
                # A bad loss on one rank spoils the rider, and through its all-reduce the update of every rank.
                rider = None if rider is None else rider * (1 + 0 * loss.detach())
            if heard and listening["on_train_step_end"]:
                step = phase.stream.drawn - parts + position
                self.fire("on_train_step_end", batch=batch, batch_output=output, step=step)
            if several:
                loss = self._scale.share(loss, weight if counted is None else counted, rider)
            if self.precision.scaler is None or type(self).backward_step is Updating.backward_step:
                self.backward_step(loss)
            else:
                self._own_backward_step(phase, loss)

    def _own_backward_step(self, phase: Phase, loss: Tensor) -> None:
        """Have a verb of the user's add the gradient, and see in the first window that it scales what it adds."""
        first = not self.recording and self.progress.visit_step == 0
        with ScaledPasses(self.precision, phase.trained) if first else NO_CONTEXT:
            self.backward_step(loss)

    def _calculate_in_stages(self, phase: Phase, window: list[Batch]) -> None:
        """Have all micro-batches of `window` under way at once, through stages on different processes."""
        gate = self._gate_in_use if self._gate is not None else None
        if gate is not None:
            gate.begin()
        self._scale.begin(len(window))
        counting = [batch for position, batch in enumerate(window) if position != phase.stream.padded]
        self._window_samples = sum(map(size_of, counting))
        self._stage_items = items_in_window(self.loss_func, counting)
        loss = self._stage_loss()
        loss.means = self._means if self.progress.visit_step == 0 else None
        with self.precision.autocast(phase.name):
            found = self.parallel.run_window(self.model, counting, loss, self._scale.factor)
        for output, size in found:
            self._loss_tracker.update(output["loss"], output.get("num_items_in_batch", size))
            if gate is not None:
                gate.note(output["loss"])
        rider = self.this_run.shared_loss.weight
        rider.grad = torch.ones_like(rider).mul_(self._scale.factor(self._stage_weight(found)))

    def _stage_loss(self) -> StageLoss:
        """Return how batches go into stages, and what comes of them at their end."""
        return StageLoss(self.precision.for_loss(self.loss_func), criterion_of(self.loss_func))

    def _stage_weight(self, found: list[tuple[dict[str, Any], int]]) -> Any:
        """Return what the losses of a window are means over, on every stage; the last one `found` them."""
        if self._stage_items is None and self.loss_func is None:
            # Only the last stage knows what its module said.
            items = [output["num_items_in_batch"] for output, _ in found if "num_items_in_batch" in output]
            said = self.parallel.from_last({"items": sum(items)} if items else {})
            return said.get("items", self._window_samples)
        return self._window_samples if self._stage_items is None else self._stage_items

    def _loss_of(self, phase: Phase, verb: LossVerb, batch: Batch, last: bool) -> tuple[dict[str, Any], Tensor | None]:
        """Return what the loss verb makes of `batch`, and the rider that collects its weight over all ranks."""
        rider: Tensor | None = None
        first = not self.recording and self.progress.visit_step == 0
        seen = self._look_at_means() if first and self._scale.pending else None
        # A mode would have what is compiled made anew; what runs line by line once does so in every run alike.
        plainly = set_stance("force_eager") if seen is not None and self._is_compiled() else NO_CONTEXT
        with plainly, NO_CONTEXT if seen is None else seen:
            if self.this_run.shared_loss.module is None and self.precision.plain:
                output = verb(batch)
            else:
                with self.precision.autocast(phase.name):
                    output, rider = self.this_run.shared_loss.compute(phase, verb, batch, last=last)
        if first:
            check_loss(output, verb=name_of(phase.loss))
            if seen is not None and not says_items(output):
                self._means.take(seen, name_of(phase.loss))
        return output, rider

    def _look_at_means(self) -> MeansSeen | None:
        """Return what sees over what losses are means; where steps are compiled only in the first update of a run."""
        if self._is_compiled() and (self.progress.step > 0 or self.this_run.execution.replays):
            return None
        return MeansSeen()

    def _weight(self, batch: Batch, output: dict[str, Any]) -> Any:
        """Count the samples of a micro-batch and return what its loss is a mean over."""
        size = output.get("batch_size")
        if type(size) is not int:
            self._window_samples += size_of(batch)
            return self._size_in(output, batch)
        self._window_samples += size
        items = output.get("num_items_in_batch")
        return size if items is None else items

    def apply_gradients(self, phase: Phase) -> None:
        """Divide by the window's weight over all ranks, clip, step, schedule, zero."""
        if self._scale.pending or self.this_run.shared_loss.module is not None:
            self.normalise_gradients(phase)
        if self._clips:
            self._clip_gradients()
        self._updated = True
        self.optimizer_step()
        if phase.scheduler is not None and self.scheduled_by_step and not self.recording:
            self.scheduler_step()
        self.optimizer_zero_grad()
        self.exchange.note(None)

    def normalise_gradients(self, phase: Phase) -> None:
        """Make the gradient that of one batch with all samples of the window, over all ranks."""
        shared = self.this_run.shared_loss
        if shared.module is None:
            self._scale.normalise(gradients_of(phase.trained))
            return
        weight = shared.take_weight(phase)
        self._scale.normalise(gradients_of(phase.trained), weight)
        self.exchange.note(phase.optimizer)

    def _clip_gradients(self) -> None:
        """Bound the gradient of the update, once, over all parameters of its optimizer."""
        norm, value = self.settings.clip_norm, self.settings.clip_value
        optimizer = self._acting_optimizer
        trained = held_by(optimizer) if self._phase is None else self._phase.trained
        self.complete_gradients(optimizer, trained)
        gradients = gradients_of(trained)
        if value is not None:
            clip_by_value(gradients, value)
        known = self.parallel.norm(trained) if self.parallel.spreads else None
        if norm is not None:
            self.gradient_norm = clip_by_norm(gradients, norm, known)
        elif self.track_gradient_norm:
            self.gradient_norm = norm_of(gradients) if known is None else known
        if self.gradient_norm is not None and (self._gate is None or self._gate_in_use is None):
            # Where the norm is known anyway, a gradient that is not finite shows in the loss of its own step.
            self._loss_tracker.spoil(self.gradient_norm)

    @property
    def _acting_optimizer(self) -> Optimizer:
        """The optimizer of the phase under way; in a loop of the user's, the only one."""
        return self._optimizers[0] if self._phase is None else self._phase.optimizer

    def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
        """Return the loss of one micro-batch.

        Returns:
            A dict with "loss", "model_outputs" and "batch_size"; other entries reach the callbacks. If the loss
            is a mean over something else than samples, such as tokens, "num_items_in_batch" says over how many.
        """
        output = default_loss(self.model, self.precision.for_loss(self.loss_func), batch)
        return count_targets(output, self.loss_func, batch) if self._scale.pending else output

    def backward_step(self, loss: Tensor) -> None:
        """Add the gradient of `loss`, which is already this micro-batch's share of the update."""
        self.add_gradient(loss)

    def add_gradient(self, loss: Tensor) -> None:
        """Add the gradient of `loss`, scaled where the precision wants it, to those of what learns now."""
        if self.precision.scaler is not None:
            loss = self.precision.scale(loss)
        inputs = None if self._phase is None else self._phase.parameters
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
        gate = None if self._gate is None else self._gate_in_use
        if gate is None:
            direct_step(self._acting_optimizer)
        else:
            self._step_if_finite(gate)

    def _step_if_finite(self, gate: UpdateGate) -> None:
        optimizer = self._acting_optimizer
        refuse_closures(optimizer)
        self.precision.unscale(optimizer)
        gate.step(optimizer, gradients_of(held_by(optimizer)), self.precision.overflow)
        self.update_applied = gate.applied
        self.precision.stepped()

    def scheduler_step(self) -> None:
        """Move the schedule on: by one update, or, where a metric drives it, by that metric's latest value."""
        scheduler = self.scheduler if self._phase is None or not self.scheduled_by_step else self._phase.scheduler
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
