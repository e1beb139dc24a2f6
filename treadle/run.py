"""One run of a trainer, from `train` to its end: its parts, and the order of what it does."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from treadle.checkpoint.checkpointer import NoCheckpointer
from treadle.checkpoint.run_state import RunState
from treadle.data import Batch
from treadle.data.run_streams import RunData, Streams
from treadle.errors import ConfigError, NonFiniteError
from treadle.events import LossTracker
from treadle.execution import CompiledVerbs, Execution, close_execution
from treadle.loop import Due, Evaluator, Log, Schedule, Stop, Updater
from treadle.loop.custom_loop import end_custom_epoch, train_epoch
from treadle.loop.interfaces import RunningTrainer
from treadle.loop.nonfinite import REMEDY, RollBack
from treadle.loop.run_config import TrainerRunConfig, settle_config
from treadle.memory.device import forget_peak, keep_host_memory
from treadle.parallel.ddp import SharedLoss
from treadle.parallel.errors import failing_together
from treadle.phase import Phase
from treadle.progress import AFTER_EPOCH, AFTER_STEP, Progress
from treadle.runs.preemption import EvaluationInterrupted
from treadle.spec import RunSpec


class Run:
    """What lives as long as a run; each part owns its state.

    A door whose runs go otherwise gives its trainer a subclass by `create_run`.

    Args:
        trainer: Whose run it is.

    Attributes:
        spec: What the run was asked to do.
        config: What that was resolved to; None before the run is prepared.
        data: What it is trained and evaluated on.
        progress: How far it has come.
        losses: The losses of training, on the device until a log is due.
        metrics: What is measured over the batches of an epoch, on the device until it ends.
        stop: Whether the run is to end.
        due: What is due after which step and epoch.
        execution: How updates are carried out.
        updater: What makes the updates, and owns what they leave behind.
        schedule: What moves the learning rates.
        log: What reads losses from the device, and acts on those that are not finite.
        shared_loss: Where losses are computed, so that the processes share their gradients.
        streams: What makes and owns the streams that batches are drawn from.
        evaluator: What evaluates and predicts.
        state: What the run is made of where it stands.
        checkpointer: What keeps it, and brings it back.
        epoch_is_cut: Whether the limit of steps ended the epoch under way before its data did.
        in_core_run: Whether the trainer's own order of a run is at work, and not one that a user wrote.
        in_core_loop: The same for the loop over an epoch.
        in_custom_update: Whether an `update` that a user wrote is at work.
    """

    def __init__(self, trainer: RunningTrainer) -> None:
        before: Run | None = vars(trainer).get("this_run")
        self.trainer, self.spec = trainer, trainer.spec
        self.config: TrainerRunConfig | None = None
        self.data, self.progress = RunData(), Progress()
        self.losses, self.metrics = LossTracker(self.progress), trainer._metrics.for_training()
        self.stop = Stop(trainer.processes, self.wake)
        self.due = Due()
        # What was compiled for one run serves the next.
        self.verbs: CompiledVerbs | None = None if before is None else before.verbs
        self.execution = Execution(trainer)
        self.streams: Streams = trainer.create_streams()
        self.evaluator = Evaluator(trainer)
        self.shared_loss = SharedLoss(trainer.parallel)
        self.updater: Updater = trainer.create_updater()
        self.schedule: Schedule = Schedule(trainer, None if before is None else before.schedule)
        self.log: Log = trainer.create_log()
        self.state: RunState = trainer.create_state()
        self.checkpointer = NoCheckpointer()
        self.epoch_is_cut = self.in_core_run = self.in_core_loop = self.in_custom_update = False

    def wake(self) -> None:
        """Have the loop look at what is due after the next step; called from other threads and signal handlers."""
        self.due.wake()

    @property
    def settings(self) -> RunSpec:
        """What the run was asked to do; `spec` of one that was asked for nothing yet is the trainer's.

        Raises:
            ConfigError: There is no run yet.
        """
        if not self.spec.is_for_training:
            raise ConfigError("this trainer has no run yet; call train() first")
        return self.spec

    # Before the first epoch ---------------------------------------------------------------------------------

    def prepare(self, train_kwargs: dict[str, Any] | None, eval_kwargs: dict[str, Any] | None) -> None:
        """Make streams, bring the model to the device, resolve the settings, make the schedule, say what is tracked.

        Args:
            train_kwargs: Arguments of the training loader, over the defaults.
            eval_kwargs: Arguments of the evaluation loader, over the defaults.
        """
        trainer = self.trainer
        trainer.storage.progress = self.progress
        self.streams.seed_run()
        trainer.precision.begin_run()
        self.streams.prepare(train_kwargs, eval_kwargs)
        trainer._prepare_model_and_optimizer()
        forget_peak(trainer.device)
        if trainer.device.type == "cpu":
            keep_host_memory()
        for optimizer in trainer.optimizers().values():
            # A run that was stopped may have left gradients behind.
            optimizer.zero_grad()
        settle_config(self)
        self.schedule.prepare()
        self.due = trainer.create_due()
        self.updater.prepare(None if self.data.training is None else self.data.training.batch_size)
        self.losses.skip_nonfinite = self.updater.gate is not None
        self.track()
        self.execution = trainer.create_execution()

    def track(self) -> None:
        """Name everything that changes while the run continues; a checkpoint is this and nothing else."""
        self.state.track()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the folder of the run and take up what lies in it; close all of the run, however it ends."""
        trainer = self.trainer
        together = failing_together(trainer.processes, self.spec.run_dir)
        with self._closed_at_the_end(), together, trainer.exchange.outside_of_epochs():
            trainer.storage.on_flush = None
            trainer.tracked.remove("metrics_file")
            if self.spec.run_dir is not None:
                self.checkpointer = trainer.create_checkpointer(self.spec.run_dir)
            self.checkpointer.open()
            self.state.restore(partly=True)
            yield

    @contextmanager
    def _closed_at_the_end(self) -> Iterator[None]:
        waits = True
        try:
            yield
        except BaseException as error:
            # Whoever interrupts a second time wants to be gone; and after a failure other ranks may be dead.
            waits = not isinstance(error, KeyboardInterrupt)
            self.checkpointer.abandon(waits=waits)
            raise
        finally:
            self.stop.looping = False
            with ExitStack() as last_first:
                last_first.callback(close_execution, self)
                last_first.callback(self.checkpointer.close, waits=waits)
                last_first.callback(self.streams.close)

    # Epochs -------------------------------------------------------------------------------------------------

    def limit_reached(self) -> str | None:
        """Return why the run is over, None while it is not."""
        spec, progress = self.spec, self.progress
        if spec.num_epochs is not None and progress.epoch >= spec.num_epochs:
            return f"all {spec.num_epochs} epochs are done"
        if spec.max_steps is not None and progress.step >= spec.max_steps:
            return f"all {spec.max_steps} steps are done"
        return None

    def epoch(self) -> None:
        """Train one epoch, evaluate if it is time, and count the epoch."""
        trainer, progress = self.trainer, self.progress
        before = progress.step
        left = progress.evaluation == AFTER_EPOCH
        if left:
            # The run was saved inside the evaluation of this epoch: that is what is left of it.
            self.move_on()
        else:
            train_epoch(self)
        self.stop.agree()
        due = left or self.due.evaluates_after(progress.epoch + 1, (before, progress.step))
        evaluated = self.data.evaluation is not None and due
        if evaluated:
            self.evaluator.evaluate_run(AFTER_EPOCH)
            self.stop.agree()
        self.schedule.after_epoch(evaluated)
        try:
            with self.stop.together():
                trainer.training_run_epoch_end()
            trainer.fire("on_training_run_epoch_end")
        finally:
            # Counted even if a callback stops the run here: nothing of this epoch is left to do.
            self.count_epoch()
        self.stop.agree()
        self.after_epoch(before, evaluated)

    def begin_epoch(self) -> None:
        """Begin an epoch, or the rest of one that the run is in the middle of."""
        trainer = self.trainer
        self.epoch_is_cut = False
        resumed = self.progress.mid_epoch
        self.streams.begin()
        with self.stop.together():
            trainer.train_epoch_start()
        trainer.fire("on_train_epoch_start")
        self.evaluator.find_sparse()
        self.shared_loss.begin_epoch()
        self.execution.begin_epoch(self.shared_loss.learning())
        if resumed:
            # Verb and event above came before the save as well: what they drew or changed just now is undone.
            self.state.restore()
            self.streams.replay(replaying=True)
        self.move_on()
        self.updater.begin_epoch()
        if self.progress.evaluation == AFTER_STEP:
            # The run was saved inside the evaluation after its last step.
            self.evaluator.evaluate_run(AFTER_STEP)
            self.checkpointer.save(best=self.checkpointer.improved(evaluated=True))

    def move_on(self) -> None:
        """Take note that the run moves on from where it is."""
        fresh = self.state.restored is None
        self.checkpointer.begin(first=self.state.begin(), fresh=fresh)

    def end_epoch(self) -> None:
        """Do what the end of the loop over an epoch is for: share buffers, call its method, log, record the loss."""
        trainer = self.trainer
        self.note_cut()
        trainer.parallel.share_buffers(trainer.model)
        with self.stop.together():
            trainer.train_epoch_end()
        if self.due.logs_after(self.progress.epoch + 1):
            self.log.write()
        self.record_epoch_loss()
        self.log.record_metrics()
        trainer.fire("on_train_epoch_end")

    def note_cut(self) -> None:
        """Save the run where the step limit cut its epoch short, before the end of the epoch moves anything."""
        stream, done = self.data.training, self.progress.step >= self.due.last_step
        self.epoch_is_cut = done and stream is not None and stream.has_next()
        if self.epoch_is_cut:
            self.checkpointer.save(finished=True)

    def count_epoch(self, *, in_history: bool = True) -> None:
        """Count the epoch; one that the step limit cut short is not over: a longer run resumes in the middle of it."""
        if not self.epoch_is_cut:
            self.progress.finish_epoch()
            if in_history:
                self.trainer.run_history._increment_epoch()

    def after_epoch(self, step_before: int, evaluated: bool) -> None:
        """Save and leave, if it is time."""
        if not self.epoch_is_cut:
            self.save_after_epoch(step_before, evaluated)
        self.leave_if_asked()

    def save_after_epoch(self, step_before: int, evaluated: bool) -> None:
        """Save if it is time by epochs, or if the time by steps came inside a loop that cannot be left."""
        due = self.due.saves_after(self.progress.epoch, (step_before, self.progress.step))
        best = self.checkpointer.improved(evaluated=evaluated)
        if due or best:
            self.checkpointer.save(best=best)

    def finish_custom_epoch(self) -> None:
        """Do for a loop of the user's what its epoch left undone."""
        end_custom_epoch(self)

    def record_epoch_loss(self) -> None:
        """Record the mean loss of the epoch, over the samples of all processes."""
        self.trainer._add_epoch_loss_to_run_history()

    # Steps --------------------------------------------------------------------------------------------------

    def windows(self, phase: Phase) -> Iterator[list[Batch]]:
        """Draw the micro-batches of one update after the other, until the phase or the run is over."""
        trainer, stream, progress = self.trainer, phase.stream, self.progress
        while phase.steps is None or progress.visit_step < phase.steps:
            if progress.step >= self.due.last_step or not (phase.reuse or stream.has_next()):
                return
            if trainer.callback_handler.table["on_update_start"]:
                trainer.fire("on_update_start")
            if not phase.draws:
                yield []
                continue
            window = stream.last_window() if phase.reuse else self.execution.draw(phase)
            if not window:
                return
            yield window

    def after_update(self) -> None:
        """Count the update, then do whatever is due at this step."""
        trainer, progress = self.trainer, self.progress
        progress.count_update(self.updater.samples)
        if trainer.callback_handler.table["on_update_end"]:
            try:
                trainer.fire("on_update_end")
            except EvaluationInterrupted:
                # A callback's own evaluation, which knows that it is to be made again.
                self.evaluator.leave()
        if progress.step >= self.due.next_step:
            self._do_what_is_due(progress.step)
        if self.stop.requested is not None and not trainer.processes.distributed:
            self.stop.agree()

    def _do_what_is_due(self, step: int) -> None:
        """Log, evaluate and ask the other processes, each at its own interval; note when to come back."""
        due = self.due.after_step(step)
        self.checkpointer.check()
        best = False
        if due.log:
            self.log.write()
        if due.evaluate:
            self.evaluator.evaluate_run(AFTER_STEP)
            best = self.checkpointer.improved(evaluated=True)
        if best or due.save:
            self.checkpointer.save(best=best)
        if due.leave:
            self.leave_if_asked()
        if due.agree:
            self.stop.agree()

    # The end ------------------------------------------------------------------------------------------------

    def leave_if_asked(self) -> None:
        """Save and leave if a signal asked any process to; every process must come here together.

        Raises:
            KeyboardInterrupt: It was SIGINT.
            PreemptedExit: It was SIGTERM or SIGUSR1.
        """
        trainer, keeper = self.trainer, self.checkpointer
        number = self.stop.agree_to_leave() if keeper.saves else 0
        if number:
            keeper.save()
            keeper.wait()
            message = f"saved step {self.progress.step} in {keeper.place}; {trainer.how_to_resume}"
            trainer.print(message)
            self.stop.leave(number, message)

    def leave_after_end(self) -> None:
        """Leave if a signal came when the run was at its end already: whoever sent it wants the process to go.

        Raises:
            KeyboardInterrupt: It was SIGINT.
            PreemptedExit: It was SIGTERM or SIGUSR1.
        """
        self.stop.leave_after_end(
            f"the run in {self.checkpointer.place} had come to its end, at step {self.progress.step}"
        )

    def already_finished(self, reason: str) -> str:
        """Say that the run was over when it was started, and why; return that."""
        self.stop.stopped = True
        self.trainer.print(f"the run is over: {reason}; raise num_epochs or max_steps to train longer")
        return reason

    def finish(self) -> None:
        """Make sure that the end of the run is a good one, and keep it.

        Raises:
            NonFiniteError: It is not.
        """
        try:
            if not self.stop.stopped:
                self.log.check_weights()
            self.checkpointer.finish()
        except RollBack as request:
            # The run is over, and there is nothing left to resume.
            raise NonFiniteError(f"{request}, at the end of the run; {REMEDY}") from None
