"""The training loop, with verbs to override and events to listen to."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from treadle._foundation import AGREEMENT_STEPS
from treadle._setup import SetUp
from treadle.data import Batch, size_of
from treadle.errors import ConfigError, DataError, StopTrainingError
from treadle.foreign import ForeignUpdates
from treadle.gradients import clip_by_norm, clip_by_value, gradients_of, norm_of
from treadle.losses import check_loss, default_loss, describe_batch
from treadle.parallel import GradientAverager
from treadle.phase import Phase
from treadle.progress import Cadence
from treadle.result import TrainResult, find_best
from treadle.schedules import require_factory
from treadle.settings import Interval, RunSettings, one_limit

NO_CONTEXT: AbstractContextManager[Any] = nullcontext()


class Trainer(SetUp):
    """Trains a model; subclass it and override a verb, or add a callback.

    The arguments are those of `Foundation`. Verbs that begin with *create* or *calculate* return a value, all
    others change the trainer.

    >>> import torch
    >>> from torch import nn, optim
    >>> model = nn.Linear(2, 1)
    >>> data = [(torch.ones(2), torch.zeros(1))] * 4
    >>> trainer = Trainer(model, nn.MSELoss(), optim.SGD(model.parameters(), lr=0.1), callbacks=())
    >>> trainer.train(data, num_epochs=2, per_device_batch_size=2).steps
    4
    """

    def train(
        self,
        train_dataset: Any,
        num_epochs: int | None = None,
        eval_dataset: Any = None,
        per_device_batch_size: int = 8,
        max_num_train_steps: int | None = None,
        gradient_accumulation_steps: int = 1,
        gradient_clip_value: float | None = None,
        create_scheduler_fn: Callable[[Optimizer], Any] | None = None,
        train_dataloader_kwargs: dict[str, Any] | None = None,
        eval_dataloader_kwargs: dict[str, Any] | None = None,
        reset_run_history: bool = True,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        resume_from: str | os.PathLike[str] | None = None,
        *,
        max_steps: int | None = None,
        clip_norm: float | None = None,
        scheduler_interval: Interval | None = None,
        scheduler_metric: str | None = None,
        eval_every: int | str | None = "1 epoch",
        log_every: int | str = 50,
        save_every: int | str | None = None,
    ) -> TrainResult:
        """Train on `train_dataset` and return how it went.

        Args:
            train_dataset: A map-style or iterable data set, a `DataLoader`, or an iterable of ready batches.
            num_epochs: Passes over the data; None trains until `max_steps`.
            eval_dataset: What to evaluate on, in any of these forms.
            per_device_batch_size: Samples per micro-batch on each process, where the trainer makes the loader.
            max_num_train_steps: The same as `max_steps`.
            gradient_accumulation_steps: Micro-batches in one update.
            gradient_clip_value: Bounds every element of the gradient.
            create_scheduler_fn: Called with the optimizer, returns its scheduler; placeholders in it are replaced.
            train_dataloader_kwargs: Arguments of the training loader, over the defaults.
            eval_dataloader_kwargs: Arguments of the evaluation loader, over the defaults.
            reset_run_history: Whether the metrics of earlier runs are forgotten.
            collate_fn: Joins samples into a batch.
            resume_from: A folder that `save_training_state` wrote, to go on from.
            max_steps: The most updates; with `num_epochs`, whichever ends first.
            clip_norm: Bounds the norm of the whole gradient.
            scheduler_interval: Whether the scheduler moves on per "step" or per "epoch"; by default per step, and
                per epoch if a metric drives it.
            scheduler_metric: The metric that drives the scheduler, for one whose `step` takes it.
            eval_every: How often to evaluate: "500 steps", "1 epoch" or a number of steps.
            log_every: How often scalars are read from the device.
            save_every: How often the run is saved into its folder.
        """
        self._settings = RunSettings(
            num_epochs=num_epochs,
            max_steps=one_limit(max_num_train_steps, max_steps),
            per_device_batch_size=per_device_batch_size,
            accumulation=gradient_accumulation_steps,
            clip_value=gradient_clip_value,
            clip_norm=clip_norm,
            scheduler_interval=scheduler_interval,
            scheduler_metric=scheduler_metric,
            eval_every=Cadence.parse_optional(eval_every, name="eval_every"),
            log_every=Cadence.parse(log_every, name="log_every"),
            save_every=Cadence.parse_optional(save_every, name="save_every"),
            resume_from=None if resume_from is None else Path(resume_from),
        )
        if self.optimizer is None:
            raise ConfigError("this trainer has no optimizer, so it can only evaluate; build it with optimizer=")
        self.train_dataset, self.eval_dataset, self.collate_fn = train_dataset, eval_dataset, collate_fn
        self.create_scheduler_fn = None if create_scheduler_fn is None else require_factory(create_scheduler_fn)
        self._set_up_run(train_dataloader_kwargs, eval_dataloader_kwargs, reset_run_history and resume_from is None)
        return self._run_training()

    # The run ----------------------------------------------------------------------------------------------

    def _run_training(self) -> TrainResult:
        """Run the epochs, with everything that goes before and after them."""
        handler = self.callback_handler
        try:
            self._resume()
            self.training_run_start()
            handler.start_session("on_training_run_start", self)
            self._resume()
            reason = self._run_epochs()
            self.training_run_end()
            self.fire("on_training_run_end")
        except BaseException as error:
            handler.fire_exception(self, error)
            raise
        finally:
            self._looping = False
            handler.end_session()
        return self._result(reason)

    def _resume(self) -> None:
        """Load the state to go on from: once for the start events to see, and again where they may have moved it."""
        if self.settings.resume_from is not None:
            self.load_training_state(self.settings.resume_from)

    def _run_epochs(self) -> str:
        self._looping = True
        try:
            while (reason := self._limit_reached()) is None:
                self._run_epoch()
        except StopTrainingError as error:
            reason = str(error) or "a callback asked to stop"
            self._looping = False
            self.print(reason)
            self.fire("on_stop_training_error")
        self._looping = False
        return reason

    def _limit_reached(self) -> str | None:
        """Return why the run is over, None while it is not."""
        epochs, steps = self.settings.num_epochs, self.settings.max_steps
        if epochs is not None and self.progress.epoch >= epochs:
            return f"all {epochs} epochs are done"
        if steps is not None and self.progress.step >= steps:
            return f"all {steps} steps are done"
        return None

    def _run_epoch(self) -> None:
        """Train one epoch, evaluate if it is time, and count the epoch."""
        self.in_own_loop = False
        with ForeignUpdates(self) if self._loop_is_foreign() else NO_CONTEXT:
            self._run_train_epoch(self._train_dataloader)
        if not self.progress.mid_epoch and not self._loop_is_foreign():
            raise DataError(
                f"epoch {self.progress.epoch + 1} made no update: its data gave no batch; an iterator lasts for one "
                "epoch only, so pass something that can be iterated again"
            )
        self._agree_on_stop()
        cadence = self.settings.eval_every
        if self._eval_dataloader is not None and cadence and cadence.due_after_epoch(self.progress.epoch + 1):
            self._run_eval_epoch(self._eval_dataloader)
            self._agree_on_stop()
        if self.scheduler is not None and not self._scheduled_by_step:
            self.scheduler_step()
        try:
            self.training_run_epoch_end()
            self.fire("on_training_run_epoch_end")
        finally:
            # Counted even if a callback stops the run here: nothing of this epoch is left to do.
            self.progress.finish_epoch()
            self.run_history._increment_epoch()
        self._agree_on_stop()

    def _loop_is_foreign(self) -> bool:
        return type(self)._run_train_epoch is not Trainer._run_train_epoch

    def _run_train_epoch(self, train_dl: Any) -> None:
        """Train one epoch: every phase, every window, one update each."""
        self.in_own_loop = True
        self._begin_epoch()
        done = self.progress.visit
        for visit, phase in enumerate(self.phases(self.progress.epoch)):
            if visit < done:
                continue
            for window in self._windows(phase):
                try:
                    self.update(phase, window)
                except (RuntimeError, ValueError, TypeError, IndexError) as error:
                    error.add_note(self._place_of(phase, window))
                    raise
                self._after_update()
            self.progress.finish_visit()
            if self._limit_reached():
                break
        self.train_epoch_end()
        self._log()
        self._add_epoch_loss_to_run_history()
        self.fire("on_train_epoch_end")

    def _place_of(self, phase: Phase, window: list[Batch]) -> str:
        place = f"at step {self.progress.step + 1}, epoch {self.progress.epoch + 1}, in {phase.loss.__name__}"
        return f"{place}, for batches of {'; '.join(map(describe_batch, window))}"

    def _begin_streams(self) -> None:
        if not self.progress.mid_epoch:
            self._loss_tracker.reset()
            for stream in self.streams.values():
                stream.begin(self.progress.epoch)

    def _begin_epoch(self) -> None:
        resumed = self.progress.mid_epoch
        self._begin_streams()
        self.train_epoch_start()
        self.fire("on_train_epoch_start")
        if resumed:
            self._resume()
        limits = self.settings.clip_norm is not None or self.settings.clip_value is not None
        overridden = type(self)._clip_gradients is not Trainer._clip_gradients
        self._clips = limits or overridden or self.track_gradient_norm

    def phases(self, epoch: int) -> Iterable[Phase]:
        """Yield the phases of an epoch, in order; override it to alternate losses, data or optimizers.

        The base has one phase: all of the training data with `calculate_train_batch_loss`. The same phases must
        come for the same epoch each time, for a run is resumed by asking for them again.
        """
        assert self._train_dataloader is not None
        if len(self.optimizers()) > 1:
            raise ConfigError(
                f"this trainer has the optimizers {sorted(self.optimizers())}; override phases() to say which acts when"
            )
        yield Phase(
            "train",
            self._train_dataloader,
            self.calculate_train_batch_loss,
            next(iter(self.optimizers().values())),
            scheduler=self.scheduler,
            accumulation=self.settings.accumulation,
        )

    def _windows(self, phase: Phase) -> Iterator[list[Batch]]:
        """Draw the micro-batches of one update after the other, until the phase or the run is over."""
        stream, progress = phase.stream, self.progress
        while phase.steps is None or progress.visit_step < phase.steps:
            if progress.step >= self._last_step or not (phase.reuse or stream.has_next()):
                return
            if self.callback_handler.table["on_update_start"]:
                self.fire("on_update_start")
            window = stream.last_window() if phase.reuse else stream.window(phase.accumulation)
            if not window:
                return
            yield window

    def _after_update(self) -> None:
        """Count the update, then do whatever is due at this step."""
        self.progress.count_update(self._window_samples)
        step = self.progress.step
        if self.callback_handler.table["on_update_end"]:
            self.fire("on_update_end")
        if step >= self._next_due:
            self._do_what_is_due(step)
        if self._stop_request is not None and not self.processes.distributed:
            self._agree_on_stop()

    def _do_what_is_due(self, step: int) -> None:
        """Log, evaluate and ask the other processes, each at its own cadence; note when to come back."""
        log, evaluate = self._log_steps, self._eval_steps
        agree = AGREEMENT_STEPS if self.processes.distributed else 0
        if log and step % log == 0:
            self._log()
        if evaluate and step % evaluate == 0:
            self._run_eval_epoch(self._eval_dataloader, is_intermediate=True)
        if agree and step % agree == 0:
            self._agree_on_stop()
        self._next_due = min((step // every + 1) * every for every in (log, evaluate, agree, sys.maxsize) if every)

    def _finish_foreign_epoch(self) -> None:
        """Do for a loop of the user's what its epoch left undone: samples, the log, the loss of the epoch."""
        self.progress.samples += sum(stream.take_samples() for stream in self.streams.values())
        recorded = len(self.run_history.get_metric_values("train_loss_epoch"))
        self._log()
        if recorded < self.run_history.current_epoch:
            self._add_epoch_loss_to_run_history()

    # One update -------------------------------------------------------------------------------------------

    def update(self, phase: Phase, window: list[Batch]) -> None:
        """Make one update from the micro-batches in `window`."""
        self.calculate_gradients(phase, window)
        self.apply_gradients(phase)

    def calculate_gradients(self, phase: Phase, window: list[Batch]) -> None:
        """Accumulate the gradient of `window`; the host never waits for the device."""
        self._phase = phase
        listening = self.callback_handler.table
        parts = len(window)
        self._window_samples = 0
        self._scale.begin(parts)
        for position, batch in enumerate(window):
            if listening["on_train_step_start"]:
                self.fire("on_train_step_start", batch=batch)
            output, rider = self._loss_of(phase, batch, last=position == parts - 1)
            loss = output["loss"]
            weight = self._weight(batch, output) if phase.stream.padded != position else 0
            self._loss_tracker.update(loss, weight)
            if listening["on_train_step_end"]:
                step = phase.stream.drawn - parts + position
                self.fire("on_train_step_end", batch=batch, batch_output=output, step=step)
            self.backward_step(loss if parts == 1 and rider is None else self._scale.share(loss, weight, rider))

    def _loss_of(self, phase: Phase, batch: Batch, *, last: bool) -> tuple[dict[str, Any], Tensor | None]:
        """Return what the loss verb makes of `batch`, and the rider that collects its weight over all ranks."""
        rider: Tensor | None = None
        if self._loss_module is None and self.precision.plain:
            output = phase.loss(batch)
        else:
            with self.precision.autocast():
                output, rider = self._wrapped_loss(phase, batch, last)
        if self.progress.visit_step == 0:
            check_loss(output, verb=phase.loss.__name__)
        return output, rider

    def _wrapped_loss(self, phase: Phase, batch: Batch, last: bool) -> tuple[dict[str, Any], Tensor | None]:
        """Compute the loss where wrappers see it; gradients are exchanged for the last micro-batch only."""
        if self._wrapped is None or phase.parameters is not None:
            module = self._loss_module
            return (phase.loss(batch), None) if module is None else module(phase.loss, batch)
        # DDP takes this flag at the forward pass and acts on it in the backward pass that follows.
        self._wrapped.require_backward_grad_sync = last
        result: tuple[dict[str, Any], Tensor] = self._wrapped(phase.loss, batch)
        return result

    def _weight(self, batch: Batch, output: dict[str, Any]) -> Any:
        """Count the samples of a micro-batch and return what its loss is a mean over."""
        size = output.get("batch_size")
        if type(size) is not int:
            self._window_samples += size_of(batch)
            return self._size_in(output, batch)
        self._window_samples += size
        return output.get("num_items_in_batch", size)

    def apply_gradients(self, phase: Phase) -> None:
        """Divide by the window's weight over all ranks, clip, step, schedule, zero."""
        if self._scale.pending:
            self.normalise_gradients(phase)
        if self._clips:
            self._clip_gradients()
        self.optimizer_step()
        if phase.scheduler is not None and self._scheduled_by_step:
            self.scheduler_step()
        self.optimizer_zero_grad()

    def normalise_gradients(self, phase: Phase) -> None:
        """Make the gradient that of one batch with all samples of the window, over all ranks."""
        if self._loss_module is None:
            self._scale.normalise(gradients_of(phase.trained))
            return
        rider = self._loss_module.weight
        if phase.parameters is not None:
            GradientAverager(self.processes).average([*phase.trained, rider])
        self._scale.normalise(gradients_of(phase.trained), rider.grad)
        rider.grad = None

    def _clip_gradients(self) -> None:
        """Bound the gradient of the update, once, over all parameters of its optimizer."""
        norm, value = self.settings.clip_norm, self.settings.clip_value
        optimizer = self._acting_optimizer
        self.precision.unscale(optimizer)
        groups = optimizer.param_groups
        held = (
            [parameter for group in groups for parameter in group["params"]]
            if self._phase is None
            else self._phase.trained
        )
        gradients = gradients_of(held)
        if value is not None:
            clip_by_value(gradients, value)
        if norm is not None:
            self.gradient_norm = clip_by_norm(gradients, norm)
        elif self.track_gradient_norm:
            self.gradient_norm = norm_of(gradients)

    @property
    def _acting_optimizer(self) -> Optimizer:
        """The optimizer of the phase under way; in a loop of the user's, the only one."""
        return self._optimizers[0] if self._phase is None else self._phase.optimizer

    # Verbs to override ------------------------------------------------------------------------------------

    def training_run_start(self) -> None:
        """Called when everything is ready and the first epoch is about to begin."""

    def train_epoch_start(self) -> None:
        """Put the model into training mode."""
        self.model.train()

    def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
        """Return the loss of one micro-batch.

        Returns:
            A dict with "loss", "model_outputs" and "batch_size"; other entries reach the callbacks. If the loss
            is a mean over something else than samples, such as tokens, "num_items_in_batch" says over how many.
        """
        return default_loss(self.model, self.loss_func, batch)

    def backward_step(self, loss: Tensor) -> None:
        """Add the gradient of `loss`, which is already this micro-batch's share of the update."""
        if self.precision.scaler is not None:
            loss = self.precision.scaler.scale(loss)
        loss.backward(inputs=None if self._phase is None else self._phase.parameters)  # type: ignore[no-untyped-call]

    def optimizer_step(self) -> None:
        """Update the weights."""
        if self.precision.scaler is None:
            self._acting_optimizer.step()
        else:
            self.precision.step(self._acting_optimizer)

    def scheduler_step(self) -> None:
        """Move the schedule on: by one update, or, where a metric drives it, by that metric's latest value."""
        scheduler = self.scheduler if self._phase is None or not self._scheduled_by_step else self._phase.scheduler
        metric = self.settings.metric_of(scheduler, evaluates=self._eval_dataloader is not None)
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(self.run_history.get_latest_metric(metric))

    def optimizer_zero_grad(self) -> None:
        """Forget the gradients; with several optimizers all of them, since a loss may reach another's weights."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def train_epoch_end(self) -> None:
        """Called after the last batch of an epoch, before its loss is recorded."""

    def training_run_epoch_end(self) -> None:
        """Called when an epoch's training and evaluation are both done."""

    def training_run_end(self) -> None:
        """Called when the run is over, stopped runs included."""

    # Records ----------------------------------------------------------------------------------------------

    def _update_loss_tracker(self, loss: Any, batch_size: Any) -> None:
        """Add a loss to the mean of the epoch; it stays on the device until a log is due."""
        self._loss_tracker.update(loss, batch_size)

    def _add_epoch_loss_to_run_history(self) -> None:
        """Record the mean loss of the epoch over the samples of all processes."""
        total, count = self.processes.reduce([self._loss_tracker.total_loss, self._loss_tracker.running_count])
        if count:
            self.run_history.update_metric("train_loss_epoch", total / count)

    def _result(self, reason: str) -> TrainResult:
        names = sorted(self.run_history.get_metric_names())
        history = {name: self.run_history.get_metric_values(name) for name in names}
        watched = [callback for callback in self.callback_handler if hasattr(callback, "watch_metric")]
        name, greater = "eval_loss_epoch" if "eval_loss_epoch" in history else "train_loss_epoch", False
        if watched:
            name, greater = watched[0].watch_metric, watched[0].greater_is_better
        return TrainResult(
            history=history,
            best=find_best(name, history.get(name, []), greater_is_better=greater),
            stop_reason=reason,
            epochs=self.progress.epoch,
            steps=self.progress.step,
            run_dir=self.run_dir,
        )
