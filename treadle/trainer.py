"""The training loop, with verbs to override and events to listen to."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

from torch.optim import Optimizer

from treadle._updating import Updating
from treadle.data import Batch, RunPass, Stream
from treadle.data.loaders import DEFAULT_SIZE, chosen_size
from treadle.determinism import Deterministic
from treadle.direct_step import check_closures
from treadle.errors import ConfigError, DataError, NonFiniteError, StopTrainingError
from treadle.foreign import ForeignRun, ForeignUpdates, guard_evaluation, guard_updates, own_updates
from treadle.handed_loader import training_on
from treadle.lr_scaling import LRScaling
from treadle.nonfinite import REMEDY, RollBack
from treadle.parallel.choosing import check_trainer
from treadle.parallel.failing import failing_together
from treadle.phase import Phase
from treadle.precision import ScaledPasses, ScaledSteps
from treadle.progress import AFTER_EPOCH, AFTER_STEP, Cadence
from treadle.result import TrainResult, find_best
from treadle.run_lock import occupied
from treadle.schedules import require_factory
from treadle.schedules.extending import Extend
from treadle.settings import Interval, RunSettings, one_limit
from treadle.verbs import check_trainer_class

NO_CONTEXT: AbstractContextManager[Any] = nullcontext()


class Trainer(Updating):
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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_trainer_class(cls, Trainer)
        guard_evaluation(cls)
        guard_updates(cls)

    def train(
        self,
        train_dataset: Any,
        num_epochs: int | None = None,
        eval_dataset: Any = None,
        per_device_batch_size: int = DEFAULT_SIZE,
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
        resume: Literal["auto"] | None = None,
        extend: Extend | None = None,
        lr_scaling: LRScaling | None = None,
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
            save_every: How often the run is saved into its folder; by default after every epoch.
            resume: "auto" goes on with the run in `run_dir` if there is one; None refuses to touch it.
            extend: What a schedule made for a shorter run does when the run is continued with a larger limit:
                "stretch" to the new length, or "hold" its last rate.
            lr_scaling: How the learning rates follow the samples of an update, which are those of all processes.
        """
        verbs = ("create_train_dataloader", "create_eval_dataloader")
        own = any(getattr(type(self), verb) is not getattr(Trainer, verb) for verb in verbs)
        size = chosen_size(per_device_batch_size, train_dataset, eval_dataset, used=own, tell=self.print)
        if save_every is None and self.run_dir is not None:
            save_every = "1 epoch"
        self._settings = RunSettings(
            num_epochs=num_epochs,
            max_steps=one_limit(max_num_train_steps, max_steps),
            per_device_batch_size=size,
            accumulation=gradient_accumulation_steps,
            clip_value=gradient_clip_value,
            clip_norm=clip_norm,
            scheduler_interval=scheduler_interval,
            scheduler_metric=scheduler_metric,
            eval_every=Cadence.parse_optional(eval_every, name="eval_every"),
            log_every=Cadence.parse(log_every, name="log_every"),
            save_every=Cadence.parse_optional(save_every, name="save_every"),
            resume_from=None if resume_from is None else Path(resume_from),
            resume=resume,
            extend=extend,
            lr_scaling=LRScaling() if lr_scaling is None else lr_scaling,
        )
        self._check_can_train(save_every, resume)
        self.train_dataset, self.eval_dataset, self.collate_fn = train_dataset, eval_dataset, collate_fn
        self.create_scheduler_fn = None if create_scheduler_fn is None else require_factory(create_scheduler_fn)
        self._set_up_run(train_dataloader_kwargs, eval_dataloader_kwargs, reset_run_history and resume_from is None)
        exactly = Deterministic(self.device) if self.deterministic else NO_CONTEXT
        alone = occupied(self.run_dir, self.processes, lambda: not self.this_run.stop.pauses)
        signals = self.this_run.stop.heeding_signals(can_save=self.run_dir is not None)
        with alone, self.storage, signals, exactly, self.single_precision, self._saving_memory():
            result = self._run()
        if self.leaves_by_itself:
            self.leave_after_end()
        return result

    def _check_can_train(self, save_every: int | str | None, resume: str | None) -> None:
        """Refuse a run that this trainer lacks something for."""
        if self.run_dir is None and (save_every is not None or resume is not None):
            asked = f"save_every={save_every!r}" if save_every is not None else f"resume={resume!r}"
            raise ConfigError(f"{asked} needs a folder for the run; build the trainer with run_dir=")
        if self.run_dir is None and self.on_nonfinite == "rollback":
            raise ConfigError("on_nonfinite='rollback' needs checkpoints to go back to; give the trainer a run_dir=")
        if self.optimizer is None:
            raise ConfigError("this trainer has no optimizer, so it can only evaluate; build it with optimizer=")

    def _check_plan(self) -> None:
        check_trainer(self, Trainer)
        if not self._loop_is_foreign():
            check_closures(self, Trainer)

    # The run ----------------------------------------------------------------------------------------------

    def _run(self) -> TrainResult:
        """Open the run that is set up, run it, and close it however it ends."""
        alike = failing_together(self.processes, self.run_dir)
        with self._closing_run(), alike, self.exchange.outside_of_epochs():
            self._open_run()
            self.this_run.state.restore(partly=True)
            if type(self)._run_training is Trainer._run_training:
                with own_updates(self):
                    self._run_training()
            else:
                with self.callback_handler.session(None, self), ForeignRun(self), own_updates(self):
                    self._run_training()
        return self._result(self.this_run.stop.reason)

    def _run_training(self) -> None:
        """Run the epochs, with the verbs and events that go before and after them."""
        self.in_own_run = True
        self.training_run_start()
        with self.callback_handler.session("on_training_run_start", self):
            self.this_run.state.restore()
            stop = self.this_run.stop
            stop.reason = self._run_epochs() if stop.over is None else self._stay_stopped(stop.over)
            self._finish_run_or_say_why()
            self.training_run_end()
            self.fire("on_training_run_end")
        self.in_own_run = False

    def _finish_run_or_say_why(self) -> None:
        try:
            self._finish_run(stopped=self.this_run.stop.stopped)
        except RollBack as request:
            # The run is over, and there is nothing left to go on with.
            raise NonFiniteError(f"{request}, at the end of the run; {REMEDY}") from None

    def _run_epochs(self) -> str:
        stop = self.this_run.stop
        stop.looping, stop.stopped = True, False
        self._tell_of_untracked()
        try:
            if self.progress.mid_epoch and self._limit_reached():
                # The run was over inside an epoch, and is started again: only the end of that epoch is due.
                self._run_epoch()
            while (reason := self._limit_reached()) is None:
                try:
                    self._run_epoch()
                except RollBack as request:
                    self.this_run.checkpointer.roll_back(request)
        except StopTrainingError as error:
            reason = str(error) or "a callback asked to stop"
            stop.end_loop(reason)
            self.print(reason)
            self.fire("on_stop_training_error")
        stop.looping = False
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
        before = self.progress.step
        left = self.progress.evaluation == AFTER_EPOCH
        if left:
            # The run was saved inside the evaluation of this epoch: that is what is left of it.
            self._note_start()
        else:
            self._train_epoch()
        self.this_run.stop.agree()
        evaluated = self._eval_dataloader is not None and (
            left or self.this_run.due.evaluates_after(self.progress.epoch + 1, (before, self.progress.step))
        )
        if evaluated:
            self.this_run.evaluator.evaluate_run(AFTER_EPOCH)
            self.this_run.stop.agree()
        self._schedule_epoch(evaluated)
        try:
            with self.this_run.stop.together():
                self.training_run_epoch_end()
            self.fire("on_training_run_epoch_end")
        finally:
            # Counted even if a callback stops the run here: nothing of this epoch is left to do.
            self._count_epoch()
        self.this_run.stop.agree()
        self._after_epoch(before, evaluated)

    def _train_epoch(self, train_dl: Any = None) -> None:
        """Train one epoch on `train_dl` or the run's data, by the loop of the trainer or by one of the user's."""
        self.in_own_loop = False
        self.this_run.due.begin_epoch()
        if self._loop_is_foreign():
            self.this_run.execution.begin_custom_loop()
        scaled_steps = ScaledSteps(self.precision, self._optimizers)
        scaled_passes = ScaledPasses(
            self.precision,
            self.model,
            self._optimizers,
            phase=lambda: self.this_run.updater.phase,
            recording=lambda: self.recording,
        )
        foreign = ForeignUpdates(self) if self._loop_is_foreign() else NO_CONTEXT
        with self.exchange, scaled_steps, scaled_passes, foreign:
            data = self._train_dataloader if train_dl is None else train_dl
            # A loop of the user's draws what the run does; anybody else goes through the data beside it.
            handed = RunPass(data) if self._loop_is_foreign() and isinstance(data, Stream) else data
            type(self)._run_train_epoch(self, handed)
        if not self.progress.mid_epoch and not self._loop_is_foreign():
            raise DataError(
                f"epoch {self.progress.epoch + 1} made no update: its data gave no batch; an iterator lasts for one "
                "epoch only, so pass something that can be iterated again"
            )

    def _count_epoch(self, *, in_history: bool = True) -> None:
        """Count the epoch; one that the step limit cut short is not over: a longer run goes on in the middle of it."""
        if not self.this_run.epoch_is_cut:
            self.progress.finish_epoch()
            if in_history:
                self.run_history._increment_epoch()

    def _after_epoch(self, step_before: int, evaluated: bool) -> None:
        """Save and leave, if it is time."""
        if not self.this_run.epoch_is_cut:
            self._save_after_epoch(step_before, evaluated)
        self.leave_if_asked()

    def _schedule_epoch(self, evaluated: bool) -> None:
        """Move a schedule by epochs on."""
        if self.scheduler is not None and not self.scheduled_by_step and not self.this_run.epoch_is_cut:
            self._step_by_epoch(evaluated or self._eval_dataloader is None)

    def _step_by_epoch(self, reported: bool) -> None:
        """Move a schedule by epochs on; one that a metric drives waits for an epoch that reported it."""
        metric = self.settings.metric_of(self.scheduler, evaluates=self._eval_dataloader is not None)
        if metric is None or reported or metric == "train_loss_epoch":
            self.scheduler_step()

    def _save_after_epoch(self, step_before: int, evaluated: bool) -> None:
        """Save if it is time by epochs, or if the time by steps came inside a loop that cannot be left."""
        due = self.this_run.due.saves_after(self.progress.epoch, (step_before, self.progress.step))
        best = self.this_run.checkpointer.improved(evaluated=evaluated)
        if due or best:
            self.this_run.checkpointer.save(best=best)

    def _loop_is_foreign(self) -> bool:
        return type(self)._run_train_epoch is not Trainer._run_train_epoch

    def _run_train_epoch(self, train_dl: Any) -> bool | None:
        """Train one epoch: every phase, every window, one update each; return whether all steps of the run are made."""
        with training_on(self, train_dl):
            self.in_own_loop = True
            self._begin_epoch()
            if self.progress.evaluation == AFTER_STEP:
                # The run was saved inside the evaluation after its last step.
                self.this_run.evaluator.evaluate_run(AFTER_STEP)
                keeper = self.this_run.checkpointer
                keeper.save(best=keeper.improved(evaluated=True))
            done = self.progress.visit
            for visit, phase in enumerate(self.phases(self.progress.epoch)):
                if visit < done:
                    continue
                self.this_run.streams.replay(replaying=False)
                for window in self._windows(phase):
                    self.this_run.updater.attempt(phase, window)
                    self._after_update()
                if self._limit_reached():
                    break
                self.progress.finish_visit()
            self._note_cut()
            self.parallel.share_buffers(self.model)
            with self.this_run.stop.together():
                self.train_epoch_end()
            if self.this_run.due.logs_after(self.progress.epoch + 1):
                self.this_run.log.write()
            self._add_epoch_loss_to_run_history()
            self.fire("on_train_epoch_end")
        self.in_own_loop = False
        return self.progress.step >= self.this_run.due.last_step

    def _note_cut(self) -> None:
        """Save the run where the step limit cut its epoch short, before the end of the epoch moves anything."""
        run, stream = self.this_run, self._train_dataloader
        run.epoch_is_cut = self.progress.step >= run.due.last_step and stream is not None and stream.has_next()
        if run.epoch_is_cut:
            run.checkpointer.save(finished=True)

    def _begin_epoch(self) -> None:
        self.this_run.epoch_is_cut = False
        resumed = self.progress.mid_epoch
        self.this_run.streams.begin()
        with self.this_run.stop.together():
            self.train_epoch_start()
        self.fire("on_train_epoch_start")
        self.this_run.evaluator.look_for_sparse()
        self.this_run.shared_loss.begin_epoch()
        self.this_run.execution.begin_epoch(self.this_run.shared_loss.learning())
        if resumed:
            self.this_run.state.restore()
            self.this_run.streams.replay(replaying=True)
        self._note_start()
        self.track_gradient_norm = self.track_gradient_norm or self.on_nonfinite == "rollback"
        self.this_run.updater.clips = self.track_gradient_norm or self._clipping_is_asked_for()

    def _clipping_is_asked_for(self) -> bool:
        bounded = self.settings.clip_norm is not None or self.settings.clip_value is not None
        return bounded or type(self)._clip_gradients is not Trainer._clip_gradients

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
            if progress.step >= self.this_run.due.last_step or not (phase.reuse or stream.has_next()):
                return
            if self.callback_handler.table["on_update_start"]:
                self.fire("on_update_start")
            if not phase.draws:
                yield []
                continue
            if phase.reuse:
                window = stream.last_window()
            else:
                window = self.this_run.execution.draw(phase)
            if not window:
                return
            yield window

    def _after_update(self) -> None:
        """Count the update, then do whatever is due at this step."""
        self.progress.count_update(self.this_run.updater.samples)
        step = self.progress.step
        if self.callback_handler.table["on_update_end"]:
            self._fire_update_end()
        if step >= self.this_run.due.next_step:
            self._do_what_is_due(step)
        if self.this_run.stop.is_requested and not self.processes.distributed:
            self.this_run.stop.agree()

    def _do_what_is_due(self, step: int) -> None:
        """Log, evaluate and ask the other processes, each at its own cadence; note when to come back."""
        due = self.this_run.due.after_step(step)
        self.this_run.checkpointer.check()
        best = False
        if due.log:
            self.this_run.log.write()
        if due.evaluate:
            self.this_run.evaluator.evaluate_run(AFTER_STEP)
            best = self.this_run.checkpointer.improved(evaluated=True)
        if best or due.save:
            self.this_run.checkpointer.save(best=best)
        if due.leave:
            self.leave_if_asked()
        if due.agree:
            self.this_run.stop.agree()

    def _finish_foreign_epoch(self) -> None:
        """Do for a loop of the user's what its epoch left undone: samples, the log, the loss of the epoch."""
        rounded = self.this_run.due.note_custom_loop()
        if rounded is not None:
            self.print(rounded)
        self.progress.samples += self.this_run.streams.take_samples()
        recorded = len(self.run_history.get_metric_values("train_loss_epoch"))
        self.this_run.log.write()
        if recorded < self.run_history.current_epoch:
            self._add_epoch_loss_to_run_history()

    # Verbs to override ------------------------------------------------------------------------------------

    def training_run_start(self) -> None:
        """Called when everything is ready and the first epoch is about to begin."""

    def train_epoch_start(self) -> None:
        """Put the model into training mode."""
        self.model.train()

    def train_epoch_end(self) -> None:
        """Called after the last batch of an epoch, before its loss is recorded."""

    def training_run_epoch_end(self) -> None:
        """Called when an epoch's training and evaluation are both done."""

    def training_run_end(self) -> None:
        """Called when the run is over, stopped runs included."""

    # Records ----------------------------------------------------------------------------------------------

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
            unsaved=self.this_run.checkpointer.unsaved,
        )
