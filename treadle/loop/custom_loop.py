"""Custom loops: their updates are counted all the same."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, Self

from torch.utils.hooks import RemovableHandle

from treadle.config.arguments import accepted
from treadle.data import RunPass, Stream
from treadle.errors import ConfigError, DataError, StopTrainingError
from treadle.events import LossTracker
from treadle.loop.interfaces import RunLike, RunningTrainer
from treadle.loop.verbs import LIBRARIES
from treadle.ops.loss_items import IGNORED, find_criterion
from treadle.precision import CustomLoopForward, ScaledPasses, ScaledSteps
from treadle.progress import Progress
from treadle.runs.preemption import InterruptibleEvaluation, interruptible

UPDATING = ("update", "calculate_gradients")
"""The methods of an update that have the model called."""


def custom_loop_forward(trainer: RunningTrainer) -> CustomLoopForward:
    """Return what has the model run in the precision of the run while a loop of the user's is at work."""
    return CustomLoopForward(trainer.precision, trainer.model, lambda: trainer.this_run.in_core_loop)


def train_epoch(run: RunLike, train_dl: Any = None) -> None:
    """Train one epoch on `train_dl` or the run's data, by the loop of the trainer or by one of the user's."""
    trainer = run.trainer
    optimizers = list(trainer.optimizers().values())
    run.in_core_loop = False
    run.due.begin_epoch()
    custom = trainer.has_custom_loop
    if custom:
        run.execution.begin_custom_loop()
    scaled_steps = ScaledSteps(trainer.precision, optimizers)
    scaled_passes = ScaledPasses(
        trainer.precision,
        trainer.model,
        optimizers,
        phase=lambda: run.updater.phase,
        recording=lambda: run.updater.recording,
    )
    # Stages without the loss begin their backward passes at what the next one sends them.
    looks = nullcontext() if trainer.parallel.is_pipeline else scaled_passes
    with trainer.exchange, scaled_steps, looks, CustomLoopUpdates(trainer) if custom else nullcontext():
        data = run.data.training if train_dl is None else train_dl
        # A loop of the user's draws what the run does; anybody else goes through the data beside it.
        type(trainer)._run_train_epoch(trainer, RunPass(data) if custom and isinstance(data, Stream) else data)
    if not run.progress.mid_epoch and not custom:
        raise DataError(
            f"epoch {run.progress.epoch + 1} made no update: its data gave no batch; an iterator lasts for one "
            "epoch only, so pass something that can be iterated again"
        )


def end_custom_epoch(run: RunLike) -> None:
    """Do for a loop of the user's what its epoch left undone: samples, the log, the loss of the epoch."""
    history = run.trainer.run_history
    rounded = run.due.note_custom_loop()
    if rounded is not None:
        run.trainer.print(rounded)
    run.progress.samples += run.streams.take_samples()
    recorded = len(history.get_metric_values("train_loss_epoch"))
    run.log.write()
    # The loop may have recorded the loss of its epoch itself.
    if recorded < history.current_epoch:
        run.record_epoch_loss()
    run.log.record_metrics()


def perform_passes(trainer: RunningTrainer, batch: Any, step: int) -> None:
    """Add the gradient of one micro-batch, for loops of the user's; `step` is its number in the epoch, from 0.

    The loss is divided by the micro-batches of its update, of which the last of an epoch may have fewer.
    """
    output = trainer.calculate_train_batch_loss(batch)
    parts, length = trainer.settings.gradient_accumulation_steps, getattr(trainer._train_dataloader, "length", None)
    if length is not None:
        # The last window of an epoch may be short: divided by all its would-be parts, its gradient would be too small.
        parts = min(parts, length - step // parts * parts)
    trainer._update_loss_tracker(output["loss"], output["batch_size"])
    if trainer.this_run.metrics.kept:
        trainer.update_metrics(batch, output)
    trainer.fire("on_train_step_end", batch=batch, batch_output=output, step=step)
    trainer.backward_step(output["loss"] if parts == 1 else output["loss"] / parts)


class CustomLoopUpdates:
    """While entered, every `optimizer.step()` outside the trainer's own `update` counts as an update.

    After it progress moves on, and whatever is due by steps happens at the end of the epoch, the only safe point that
    a loop of somebody else has. Gradients are averaged by the trainer's `exchange`.
    """

    def __init__(self, trainer: RunningTrainer) -> None:
        self._trainer = trainer
        self._handles: list[RemovableHandle] = []
        self._own_updates = trainer.progress.step
        self._first = trainer.progress == Progress()
        self._forward = custom_loop_forward(trainer)

    def __enter__(self) -> Self:
        self._forward.__enter__()
        if self._trainer.precision.kind == "fp16" and self._first:
            self._trainer.print(
                "precision='fp16' is not applied to forward passes in a loop of your own: run them within "
                "self.precision.autocast(), and use self.backward_step(loss) and self.optimizer_step()"
            )
        for optimizer in self._trainer.optimizers().values():
            self._handles.append(optimizer.register_step_post_hook(self._after))
        self._trainer.this_run.streams.begin()
        return self

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._trainer.this_run.in_core_loop:
            self._trainer.progress.count_update(0)
            self._own_updates += 1

    def __exit__(self, *exception: Any) -> None:
        self._forward.__exit__(*exception)
        for handle in self._handles:
            handle.remove()
        # An override that calls `super()._run_train_epoch` has had all of this done by the trainer's own loop.
        ran_the_trainers_own = self._trainer.progress.step > self._own_updates
        if exception[0] is None and not ran_the_trainers_own:
            self._trainer.this_run.finish_custom_epoch()
            if self._first:
                self._warn_of_means()

    def _warn_of_means(self) -> None:
        """Say that means over other things than samples are averaged as they are, where that makes a difference."""
        trainer = self._trainer
        criterion = find_criterion(trainer.loss_func)
        if criterion is None or (criterion.weight is None and criterion.ignore_index == IGNORED):
            return
        if trainer.settings.gradient_accumulation_steps > 1 or trainer.parallel.data_size > 1:
            trainer.print(
                "the loss is a mean over the weights of the targets that count, and your own loop over batches makes "
                "no gradient of one batch of several such means; leave the loop to the trainer, which weighs them by "
                "num_items_in_batch"
            )


class CustomStep:
    """Makes one update of the loop out of a step that a user wrote, in which he calls `optimizer.step()` himself.

    Before it, gradients are clipped as the run's settings say, after the trainer's `exchange` has averaged them. While
    `own` is set, the step is the trainer's, which did both.

    Attributes:
        own: Whether the optimizer steps in the trainer's own `update`.
    """

    def __init__(self, trainer: RunningTrainer) -> None:
        self._trainer = trainer
        self._steps = 0
        self.own = False

    def run(self, step: Callable[[int], None], attempts: int) -> None:
        """Call `step` with 0, 1, ... until an optimizer has stepped, `attempts` times at most.

        A step that is made for one micro-batch, and steps the optimizer only when a window is full, is so called
        for every micro-batch of it.
        """
        optimizers = list(self._trainer.optimizers().values())
        handles = [one.register_step_pre_hook(self._before) for one in optimizers]
        handles += [one.register_step_post_hook(self._after) for one in optimizers]
        self._steps = 0
        try:
            for attempt in range(attempts):
                step(attempt)
                if self._steps:
                    return
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.own and self._trainer.this_run.updater.clips:
            self._trainer._clip_gradients()

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._steps += 1


class CustomRun:
    """While entered, the epochs of a `_run_training` that a user wrote are counted, saved and resumed as always.

    Meanwhile the trainer's `_run_train_epoch` and `training_run_end` go by this: the first ends the epoch before and
    begins one, the second ends the last one and saves the run, before anything at its end may change the weights.
    """

    def __init__(self, trainer: RunningTrainer) -> None:
        if trainer.on_nonfinite == "rollback":
            raise ConfigError(
                "on_nonfinite='rollback' goes back in the run, which a _run_training of your own would not notice; "
                "use 'raise' or 'skip'"
            )
        self._trainer = trainer
        self._epoch: tuple[int, int, int] | None = None
        self._begun = self._resumed = self._ended = self._trains = False
        self._wish: str | None = None
        self._on_stop = trainer.callback_handler.on_stop
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        trainer, cadence = self._trainer, self._trainer.settings.eval_every
        trainer.this_run.stop.looping, trainer.this_run.stop.stopped = True, False
        if (
            trainer._eval_dataloader is not None
            and cadence is not None
            and not (cadence.in_steps or cadence.every == 1)
        ):
            trainer.print(f"eval_every='{cadence}' has no effect: your own _run_training says when to evaluate")
        trainer.callback_handler.on_stop = self._note_wish
        self._handles = [one.register_step_pre_hook(self._refuse) for one in trainer.optimizers().values()]
        # On the object, where the user's call finds them first; by `type(trainer)` the class's are still called.
        vars(trainer).update(_run_train_epoch=self._train_epoch, training_run_end=self._training_run_end)
        return self

    def __exit__(self, *exception: Any) -> None:
        trainer = self._trainer
        for name in ("_run_train_epoch", "training_run_end"):
            vars(trainer).pop(name)
        for handle in self._handles:
            handle.remove()
        trainer.callback_handler.on_stop = self._on_stop
        if exception[0] is None:
            self._end()
        trainer.this_run.stop.looping = False

    def _refuse(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._trains and not self._trainer.this_run.in_core_run:
            raise ConfigError(
                f"{type(optimizer).__name__} stepped in a _run_training of your own but outside of _run_train_epoch, "
                "where nobody counts, averages or saves its updates; put the loop over batches into _run_train_epoch"
            )

    def _note_wish(self, error: StopTrainingError) -> bool:
        self._wish = str(error) or "a callback asked to stop"
        return self._on_stop(error)

    def _train_epoch(self, train_dl: Any) -> Any:
        trainer = self._trainer
        if trainer.this_run.in_core_run:
            return type(trainer)._run_train_epoch(trainer, train_dl)
        self._finish_epoch()
        self._wish = None
        self._begin()
        try:
            trainer.this_run.stop.agree()
            self._epoch = (trainer.progress.step, trainer.run_history.current_epoch, self._evaluations())
            self._trains = True
            train_epoch(trainer.this_run, train_dl)
            trainer.this_run.stop.agree()
        except StopTrainingError as error:
            # In the middle of an epoch, which is not counted.
            self._epoch = None
            self._note_wish(error)
            raise
        finally:
            self._trains = False
        return trainer.progress.step >= trainer.this_run.due.last_step

    def _begin(self) -> None:
        """Before the first epoch, go to where the run is; one that is resumed has no more epochs than were planned."""
        trainer = self._trainer
        over: str | None = None
        if not self._begun:
            self._begun, self._resumed = True, trainer.this_run.state.restored is not None
            trainer.this_run.state.restore()
            over = self._wish = trainer.this_run.stop.over
        over = over or (trainer.this_run.limit_reached() if self._resumed else None)
        if over is not None:
            raise StopTrainingError(over)

    def _evaluations(self) -> int:
        return len(self._trainer.run_history.get_metric_values("eval_loss_epoch"))

    def _finish_epoch(self) -> None:
        """Count the epoch under way, and do what is due after it."""
        if self._epoch is None:
            return
        trainer, (step, epoch, evaluations) = self._trainer, self._epoch
        self._epoch = None
        evaluated = self._evaluations() > evaluations
        trainer.this_run.schedule.after_epoch(evaluated)
        trainer.this_run.count_epoch(in_history=trainer.run_history.current_epoch == epoch)
        trainer.this_run.after_epoch(step, evaluated)

    def _training_run_end(self) -> None:
        if self._trainer.this_run.in_core_run:
            self._ended = True
        else:
            self._end()
        type(self._trainer).training_run_end(self._trainer)

    def _end(self) -> None:
        """Finish the last epoch and save the end of the run, once."""
        if self._ended:
            return
        self._ended = True
        trainer = self._trainer
        self._finish_epoch()
        if self._wish is not None:
            trainer.this_run.stop.end_loop(self._wish)
        trainer.this_run.stop.reason = self._wish or trainer.this_run.limit_reached() or "its own _run_training ended"
        trainer.this_run.finish()


def guard_evaluation(kind: type[RunningTrainer]) -> None:
    """Have a `_run_eval_epoch` that a user wrote leave alone what is training's: its losses, modes and generators.

    It can be broken off where it goes through the run's evaluation data, until it has recorded something, which would
    be there twice when it is made again. On several processes nobody knows whether all of them have as many batches.
    """
    own = vars(kind).get("_run_eval_epoch")
    if own is None:
        return

    @wraps(own)
    def run_eval_epoch(trainer: RunningTrainer, *args: Any, **kwargs: Any) -> Any:
        # A user's evaluation adds to `_loss_tracker` too, as in pytorch-accelerated: it gets one of its own.
        tracker, trainer._loss_tracker = trainer._loss_tracker, LossTracker(trainer.progress)
        try:
            with (
                trainer.single_precision,
                trainer.this_run.evaluator.eval_mode(),
                custom_loop_forward(trainer),
                interruptible(_interruptible_evaluation(trainer)),
            ):
                # The contract's has no `is_intermediate`.
                return own(trainer, *args, **accepted(own, **kwargs))
        finally:
            trainer._loss_tracker = tracker

    setattr(kind, "_run_eval_epoch", run_eval_epoch)  # noqa: B010 - mypy knows it as a method


def guard_updates(kind: type[RunningTrainer]) -> None:
    """Have it noted while an `update` or `calculate_gradients` that a user wrote is at work."""
    for name in UPDATING:
        own = vars(kind).get(name)
        if own is not None and kind.__module__.partition(".")[0] not in LIBRARIES:
            setattr(kind, name, _noted(own))


def _noted(own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def verb(trainer: RunningTrainer, *args: Any, **kwargs: Any) -> Any:
        run = trainer.this_run
        before, run.in_custom_update = run.in_custom_update, True
        try:
            return own(trainer, *args, **kwargs)
        finally:
            run.in_custom_update = before

    return verb


def custom_updates(trainer: RunningTrainer) -> AbstractContextManager[Any]:
    """Return what has the model run in the precision of the run where an `update` that a user wrote calls it.

    In fp16 it is said once that it does not. What runs under autocast already, as in methods of the trainer's that it
    calls, goes without. It is entered for the run: what is compiled would be made anew wherever hooks come and go.
    """
    if trainer.precision.plain or not any(hasattr(getattr(type(trainer), name), "__wrapped__") for name in UPDATING):
        return nullcontext()

    def tell() -> None:
        trainer.print(
            "precision='fp16' is not applied to forward passes in an update or calculate_gradients of your own: run "
            "them within self.precision.autocast(), and use self.backward_step(loss) and self.optimizer_step()"
        )

    products = trainer.precision.products
    idle: Callable[[], bool] = lambda: not trainer.this_run.in_custom_update or products.regions > 0  # noqa: E731
    return CustomLoopForward(trainer.precision, trainer.model, idle, tell if trainer.progress == Progress() else None)


def _interruptible_evaluation(trainer: RunningTrainer) -> InterruptibleEvaluation | None:
    """Return how an evaluation that a user wrote is broken off; None if it is not."""
    if trainer.this_run.evaluator.leavable is None or trainer.processes.distributed:
        return None
    before = _recorded(trainer)
    return InterruptibleEvaluation(
        lambda: trainer.this_run.stop.is_asked_to_leave() and _recorded(trainer) == before, trainer.processes, None, 1
    )


def _recorded(trainer: RunningTrainer) -> dict[str, int]:
    """Return how many values each metric has."""
    history = trainer.run_history
    return {name: len(history.get_metric_values(name)) for name in history.get_metric_names()}
