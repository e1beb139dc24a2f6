"""One run of a trainer, from `train` to its end: its parts, and the order of what it does."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from treadle.checkpoint.checkpointer import NoCheckpointer
from treadle.checkpoint.model_state import ModelState
from treadle.checkpoint.run_state import RunState
from treadle.data import Batch, RandomState, RunPass, Stream
from treadle.data.streams import Streams
from treadle.errors import ConfigError, DataError, NonFiniteError
from treadle.execution import Execution
from treadle.foreign import ForeignUpdates
from treadle.kept import kept_by
from treadle.leaving import EvaluationLeft
from treadle.loop import Due, Evaluator, Log, Stop, Updater
from treadle.lr_scaling import scale_rates
from treadle.memory import forget_peak, keep_host_memory
from treadle.nonfinite import REMEDY, RollBack
from treadle.parallel.failing import failing_together
from treadle.parallel.shared_loss import SharedLoss
from treadle.phase import Phase, held_by
from treadle.precision import ScaledPasses, ScaledSteps
from treadle.progress import AFTER_EPOCH, AFTER_STEP, Progress
from treadle.result import TrainResult, find_best
from treadle.run_config import checked_config, resolved_config
from treadle.schedules.factory import require_scheduler
from treadle.settings import RunSettings

if TYPE_CHECKING:
    from treadle.trainer import Trainer

NO_CONTEXT: AbstractContextManager[Any] = nullcontext()


class Run:
    """What lives as long as a run; each part owns its state.

    A door whose runs go otherwise gives its trainer a subclass by `create_run`.

    Args:
        trainer: Whose run it is.

    Attributes:
        stop: Whether the run is to end.
        due: What is due after which step and epoch.
        execution: How updates are carried out.
        updater: What makes the updates, and owns what they leave behind.
        log: What reads losses from the device, and acts on those that are not finite.
        shared_loss: Where losses are computed, so that the processes share their gradients.
        streams: What its batches are drawn from.
        evaluator: What evaluates and predicts.
        state: What the run is made of where it stands.
        checkpointer: What keeps it, and brings it back.
        epoch_is_cut: Whether the limit of steps ended the epoch under way before its data did.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self.trainer = trainer
        self.stop = Stop(trainer.processes, self.wake)
        self.due = Due()
        self.execution = Execution(trainer)
        self.streams: Streams = trainer.create_streams()
        self.evaluator = Evaluator(trainer)
        self.shared_loss = SharedLoss(trainer.parallel)
        self.updater: Updater = trainer.create_updater()
        self.log: Log = trainer.create_log()
        self.state: RunState = trainer.create_state()
        self.checkpointer = NoCheckpointer()
        self.epoch_is_cut = False

    def wake(self) -> None:
        """Have the loop look at what is due after the next step; called from other threads and signal handlers."""
        self.due.wake()

    # Before the first epoch ---------------------------------------------------------------------------------

    def prepare(self, train_kwargs: dict[str, Any] | None, eval_kwargs: dict[str, Any] | None) -> None:
        """Make streams, bring the model to the device, resolve the settings, make the schedule, say what is tracked.

        Args:
            train_kwargs: Arguments of the training loader, over the defaults.
            eval_kwargs: Arguments of the evaluation loader, over the defaults.
        """
        trainer = self.trainer
        trainer.progress = trainer.storage.progress = trainer._loss_tracker.progress = Progress()
        trainer.update_applied = None
        self.streams.seed_run()
        trainer.precision.begin_run()
        trainer.prepares_data = True
        try:
            trainer.create_dataloaders(train_kwargs, eval_kwargs)
            trainer._prepare_dataloaders()
        finally:
            trainer.prepares_data = False
        self.streams.open()
        trainer._prepare_model_and_optimizer()
        forget_peak(trainer.device)
        if trainer.device.type == "cpu":
            keep_host_memory()
        for optimizer in trainer.optimizers().values():
            # A run that was stopped may have left gradients behind.
            optimizer.zero_grad()
        self._resolve_config()
        self._scale_rates()
        trainer.scheduler = self._make_scheduler()
        trainer.scheduled_by_step = trainer.settings.interval_of(trainer.scheduler) == "step"
        self.due = trainer.create_due()
        self.updater.prepare(None if trainer._train_dataloader is None else trainer._train_dataloader.batch_size)
        trainer._loss_tracker.skip_nonfinite = self.updater.gate is not None
        self.track()
        self.execution = trainer.create_execution()

    def _resolve_config(self) -> None:
        """Have the settings of the run resolved, and go by what came of it."""
        trainer, settings = self.trainer, self.trainer.settings
        asked: dict[str, Any] = {
            "num_epochs": settings.num_epochs,
            "gradient_accumulation_steps": settings.accumulation,
            "max_num_train_steps": settings.max_steps,
            "gradient_clip_value": settings.clip_value,
        }
        own = resolved_config(trainer, **asked)
        size = settings.per_device_batch_size
        trainer.run_config = checked_config(trainer._create_run_config(per_device_batch_size=size, **asked), own)
        self.settle(settings.as_in(trainer.run_config, own))

    def settle(self, settings: RunSettings) -> None:
        """Have the run go by these settings."""
        self.trainer._settings = settings

    def place_model(self) -> None:
        """Bring the model to the device, or what this process holds of it."""
        trainer = self.trainer
        optimizers = list(trainer.optimizers().values())
        if not trainer.parallel.prepared:
            held = {id(one) for optimizer in optimizers for one in held_by(optimizer)}
            trainable = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
            if held and trainable and not any(id(parameter) in held for parameter in trainable):
                raise ConfigError("the optimizer holds no parameter of this model; build it from model.parameters()")
        trainer.parallel.prepare(trainer.model, optimizers)
        trainer.parallel.place(trainer.model)

    def _make_scheduler(self) -> Any:
        """Return what `create_scheduler` makes; None only if nobody asked for a scheduler.

        Raises:
            ConfigError: A factory was given and nothing came of it, or something else than a scheduler.
        """
        trainer, kind = self.trainer, type(self.trainer)
        scheduler = trainer.create_scheduler()
        own = kind.create_scheduler.__module__.partition(".")[0] != "treadle"
        maker = f"{kind.__name__}.create_scheduler" if own else "create_scheduler_fn"
        if scheduler is not None or trainer.create_scheduler_fn is not None:
            return require_scheduler(scheduler, maker=maker)
        if own:
            trainer.print(f"{maker} returned None: the learning rates stay as they are")
        return None

    def _scale_rates(self) -> None:
        """Have the learning rates follow the batch, whatever an earlier run of this trainer made of them."""
        trainer, config = self.trainer, self.trainer.run_config
        assert config is not None
        scaling, batch = trainer.settings.lr_scaling, config.train_total_batch_size
        factor = scaling.factor(batch)
        if factor != trainer._rate_factor:
            for optimizer in trainer.optimizers().values():
                scale_rates(optimizer, factor / trainer._rate_factor)
            trainer._rate_factor = factor
        if scaling.rule != "none":
            trainer.print(scaling.describe(batch))

    def track(self) -> None:
        """Name everything that changes while the run goes on; a checkpoint is this and nothing else."""
        trainer = self.trainer
        trainer.track(model=ModelState(trainer.model))
        for name, optimizer in trainer.optimizers().items():
            trainer.track(**{name: self.state.of_optimizer(optimizer)})
        trainer.tracked.remove("scheduler")
        if trainer.scheduler is not None:
            trainer.track(scheduler=trainer.scheduler)
        for name, stream in self.streams.by_name.items():
            trainer.track(**{f"stream_{name}": stream})
        trainer.tracked.remove("stream_evaluation")
        if trainer._eval_dataloader is not None:
            trainer.track(stream_evaluation=trainer._eval_dataloader)
        trainer.track(
            precision=trainer.precision,
            progress=trainer.progress,
            history=trainer.run_history,
            losses=trainer._loss_tracker,
            callbacks=trainer.callback_handler,
            random=RandomState(),
            poisoned=self.updater.skipped,
            micro_batches=self.updater.splits,
        )
        trainer.tracked.remove("gate")
        if self.updater.gate is not None:
            trainer.track(gate=self.updater.gate)

    @contextmanager
    def saving_memory(self) -> Iterator[None]:
        """Let the run take less memory of the device, in the ways that were asked for."""
        with ExitStack() as stack:
            stack.enter_context(self.trainer.activation_checkpointing)
            for offloaded in self.updater.offloaded:
                stack.enter_context(offloaded)
            yield

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the folder of the run and take up what lies in it; close all of the run, however it ends."""
        trainer = self.trainer
        together = failing_together(trainer.processes, trainer.run_dir)
        with self._closed_at_the_end(), together, trainer.exchange.outside_of_epochs():
            trainer.storage.on_flush = None
            trainer.tracked.remove("metrics_file")
            if trainer.run_dir is not None:
                self.checkpointer = trainer.create_checkpointer(trainer.run_dir)
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
                last_first.callback(self.execution.close)
                last_first.callback(self.checkpointer.close, waits=waits)
                last_first.callback(self.streams.close)

    # Epochs -------------------------------------------------------------------------------------------------

    def limit_reached(self) -> str | None:
        """Return why the run is over, None while it is not."""
        settings, progress = self.trainer.settings, self.trainer.progress
        if settings.num_epochs is not None and progress.epoch >= settings.num_epochs:
            return f"all {settings.num_epochs} epochs are done"
        if settings.max_steps is not None and progress.step >= settings.max_steps:
            return f"all {settings.max_steps} steps are done"
        return None

    def epoch(self) -> None:
        """Train one epoch, evaluate if it is time, and count the epoch."""
        trainer, progress = self.trainer, self.trainer.progress
        before = progress.step
        left = progress.evaluation == AFTER_EPOCH
        if left:
            # The run was saved inside the evaluation of this epoch: that is what is left of it.
            self.move_on()
        else:
            self.train_epoch()
        self.stop.agree()
        due = left or self.due.evaluates_after(progress.epoch + 1, (before, progress.step))
        evaluated = trainer._eval_dataloader is not None and due
        if evaluated:
            self.evaluator.evaluate_run(AFTER_EPOCH)
            self.stop.agree()
        self.schedule_epoch(evaluated)
        try:
            with self.stop.together():
                trainer.training_run_epoch_end()
            trainer.fire("on_training_run_epoch_end")
        finally:
            # Counted even if a callback stops the run here: nothing of this epoch is left to do.
            self.count_epoch()
        self.stop.agree()
        self.after_epoch(before, evaluated)

    def train_epoch(self, train_dl: Any = None) -> None:
        """Train one epoch on `train_dl` or the run's data, by the loop of the trainer or by one of the user's."""
        trainer = self.trainer
        optimizers = list(trainer.optimizers().values())
        trainer.in_own_loop = False
        self.due.begin_epoch()
        custom = trainer.has_custom_loop
        if custom:
            self.execution.begin_custom_loop()
        scaled_steps = ScaledSteps(trainer.precision, optimizers)
        scaled_passes = ScaledPasses(
            trainer.precision,
            trainer.model,
            optimizers,
            phase=lambda: self.updater.phase,
            recording=lambda: trainer.recording,
        )
        with trainer.exchange, scaled_steps, scaled_passes, ForeignUpdates(trainer) if custom else NO_CONTEXT:
            data = trainer._train_dataloader if train_dl is None else train_dl
            # A loop of the user's draws what the run does; anybody else goes through the data beside it.
            type(trainer)._run_train_epoch(trainer, RunPass(data) if custom and isinstance(data, Stream) else data)
        if not trainer.progress.mid_epoch and not custom:
            raise DataError(
                f"epoch {trainer.progress.epoch + 1} made no update: its data gave no batch; an iterator lasts for one "
                "epoch only, so pass something that can be iterated again"
            )

    def begin_epoch(self) -> None:
        """Begin an epoch, or the rest of one that the run is in the middle of."""
        trainer = self.trainer
        self.epoch_is_cut = False
        resumed = trainer.progress.mid_epoch
        self.streams.begin()
        with self.stop.together():
            trainer.train_epoch_start()
        trainer.fire("on_train_epoch_start")
        self.evaluator.look_for_sparse()
        self.shared_loss.begin_epoch()
        self.execution.begin_epoch(self.shared_loss.learning())
        if resumed:
            self.state.restore()
            self.streams.replay(replaying=True)
        self.move_on()
        trainer.track_gradient_norm = trainer.track_gradient_norm or trainer.on_nonfinite == "rollback"
        self.updater.clips = trainer.track_gradient_norm or self.updater.is_asked_to_clip

    def move_on(self) -> None:
        """Take note that the run moves on from where it is."""
        fresh = self.state.restored is None
        self.checkpointer.begin(first=self.state.begin(), fresh=fresh)

    def note_cut(self) -> None:
        """Save the run where the step limit cut its epoch short, before the end of the epoch moves anything."""
        stream, done = self.trainer._train_dataloader, self.trainer.progress.step >= self.due.last_step
        self.epoch_is_cut = done and stream is not None and stream.has_next()
        if self.epoch_is_cut:
            self.checkpointer.save(finished=True)

    def schedule_epoch(self, evaluated: bool) -> None:
        """Move a schedule by epochs on; one that a metric drives waits for an epoch that reported it."""
        trainer = self.trainer
        if trainer.scheduler is None or trainer.scheduled_by_step or self.epoch_is_cut:
            return
        evaluates = trainer._eval_dataloader is not None
        metric = trainer.settings.metric_of(trainer.scheduler, evaluates=evaluates)
        if metric is None or evaluated or not evaluates or metric == "train_loss_epoch":
            trainer.scheduler_step()

    def count_epoch(self, *, in_history: bool = True) -> None:
        """Count the epoch; one that the step limit cut short is not over: a longer run goes on in the middle of it."""
        if not self.epoch_is_cut:
            self.trainer.progress.finish_epoch()
            if in_history:
                self.trainer.run_history._increment_epoch()

    def after_epoch(self, step_before: int, evaluated: bool) -> None:
        """Save and leave, if it is time."""
        if not self.epoch_is_cut:
            self.save_after_epoch(step_before, evaluated)
        self.leave_if_asked()

    def save_after_epoch(self, step_before: int, evaluated: bool) -> None:
        """Save if it is time by epochs, or if the time by steps came inside a loop that cannot be left."""
        progress = self.trainer.progress
        due = self.due.saves_after(progress.epoch, (step_before, progress.step))
        best = self.checkpointer.improved(evaluated=evaluated)
        if due or best:
            self.checkpointer.save(best=best)

    def finish_custom_epoch(self) -> None:
        """Do for a loop of the user's what its epoch left undone: samples, the log, the loss of the epoch."""
        trainer, history = self.trainer, self.trainer.run_history
        rounded = self.due.note_custom_loop()
        if rounded is not None:
            trainer.print(rounded)
        trainer.progress.samples += self.streams.take_samples()
        recorded = len(history.get_metric_values("train_loss_epoch"))
        self.log.write()
        if recorded < history.current_epoch:
            self.record_epoch_loss()

    def record_epoch_loss(self) -> None:
        """Record the mean loss of the epoch, over the samples of all processes."""
        self.trainer._add_epoch_loss_to_run_history()

    # Steps --------------------------------------------------------------------------------------------------

    def windows(self, phase: Phase) -> Iterator[list[Batch]]:
        """Draw the micro-batches of one update after the other, until the phase or the run is over."""
        trainer, stream, progress = self.trainer, phase.stream, self.trainer.progress
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
        trainer, progress = self.trainer, self.trainer.progress
        progress.count_update(self.updater.samples)
        if trainer.callback_handler.table["on_update_end"]:
            try:
                trainer.fire("on_update_end")
            except EvaluationLeft:
                # A callback's own evaluation, which knows that it is to be made again.
                self.evaluator.leave()
        if progress.step >= self.due.next_step:
            self._do_what_is_due(progress.step)
        if self.stop.requested is not None and not trainer.processes.distributed:
            self.stop.agree()

    def _do_what_is_due(self, step: int) -> None:
        """Log, evaluate and ask the other processes, each at its own cadence; note when to come back."""
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
            message = f"saved step {trainer.progress.step} in {trainer.run_dir}; {trainer.how_to_resume}"
            trainer.print(message)
            self.stop.leave(number, message)

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
            # The run is over, and there is nothing left to go on with.
            raise NonFiniteError(f"{request}, at the end of the run; {REMEDY}") from None

    def tell_of_untracked(self) -> None:
        """Say which optimizers the trainer keeps that no checkpoint will hold."""
        trainer = self.trainer
        if not self.checkpointer.saves:
            return
        given = list(trainer.optimizers().values())
        for name, value in kept_by(trainer):
            if isinstance(value, Optimizer) and not any(value is one for one in given):
                given.append(value)
                if not trainer.tracked.holds(value):
                    called = name.rpartition(".")[2]
                    trainer.print(
                        f"{called}, of type {type(value).__name__}, is not saved with the run, and begins anew when it "
                        "is resumed; call trainer.track(name=...) with it and with what it trains"
                    )

    def result(self) -> TrainResult:
        """Return how the run went."""
        trainer, history = self.trainer, self.trainer.run_history
        values = {name: history.get_metric_values(name) for name in sorted(history.get_metric_names())}
        watched = [callback for callback in trainer.callback_handler if hasattr(callback, "watch_metric")]
        name, greater = "eval_loss_epoch" if "eval_loss_epoch" in values else "train_loss_epoch", False
        if watched:
            name, greater = watched[0].watch_metric, watched[0].greater_is_better
        return TrainResult(
            history=values,
            best=find_best(name, values.get(name, []), greater_is_better=greater),
            stop_reason=self.stop.reason,
            epochs=trainer.progress.epoch,
            steps=trainer.progress.step,
            run_dir=trainer.run_dir,
            unsaved=self.checkpointer.unsaved,
        )
