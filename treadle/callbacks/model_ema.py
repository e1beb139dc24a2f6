"""Keeps a moving average of the weights beside the model, evaluates and saves it."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from treadle.callback import CallbackHandler
from treadle.callbacks.ema import ModelEma
from treadle.callbacks.placing import output_path
from treadle.callbacks.watched_metric import WatchesMetric
from treadle.checkpoint.format.suffixes import file_format
from treadle.loop.interfaces import RunningTrainer
from treadle.parallel.state_dict import load_state, local_state_dict
from treadle.progress import Cadence

PREFIX = "ema_model_"
USUAL = "ema_model.pt"


class ModelEmaCallback(WatchesMetric):
    """Averages the weights of the model over the updates of a run.

    After each evaluation of the model its average is evaluated too, and its metrics are recorded with
    "ema_model_" before their names. The average with the best metric is saved; without evaluations, the average
    at the end of the run. The model that is trained is never changed.

    Args:
        decay: How much of the average stays at each update.
        evaluate_during_training: Whether the average is evaluated; without evaluation data it is not.
        save_path: Where the average is saved; by default in `ema_model.pt` in the folder of the run, or here if it has
            none.
        watch_metric: The metric that says which average is best.
        greater_is_better: Whether a greater value is better.
        model_ema: What makes the average of a model: a class like `ModelEma`.
        callbacks: Callbacks that see the evaluations of the average, and the start and end of the run.
        update_every: How often the average moves: by default at every update; "1 epoch" for once an epoch.

    Raises:
        CheckpointError: The name of the file is that of a format which is not written.

    Attributes:
        ema_model: The average of the run under way, or of the last one.
    """

    reads_pieces = True
    """Of a model that is sharded over processes, each reads the pieces that it holds."""

    def __init__(
        self,
        decay: float = 0.99,
        evaluate_during_training: bool = True,
        save_path: str | os.PathLike[str] | None = None,
        watch_metric: str = PREFIX + "eval_loss_epoch",
        greater_is_better: bool = False,
        model_ema: Any = ModelEma,
        callbacks: Iterable[Any] = (),
        update_every: int | str | Cadence | None = None,
    ) -> None:
        super().__init__(watch_metric, greater_is_better=greater_is_better)
        self.decay = decay
        self.evaluate_during_training = evaluate_during_training
        self._given = save_path
        file_format(USUAL if save_path is None else save_path)
        self.save_path: str | os.PathLike[str] = USUAL if save_path is None else save_path
        self.ema_model: Any = None
        self._make = model_ema
        self._handler = CallbackHandler(callbacks)
        self._cadence = Cadence.parse(1 if update_every is None else update_every, name="update_every")
        self._evaluates = False

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Start the average at the model's weights, in a run."""
        super().begin_session(trainer, training=training)
        if not training:
            return
        self.save_path = output_path(self._given, USUAL, trainer)
        self.ema_model = self._make(trainer.get_model(keep_torch_compile=False), decay=self.decay)
        self._evaluates = self.evaluate_during_training and trainer._eval_dataloader is not None
        self._handler.start_session("on_training_run_start", trainer)

    def require_evaluations(self, trainer: Any) -> None:
        """Require nothing: without evaluations of the average that of the end is saved."""

    def on_update_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Move the average, unless the update that was replayed did so."""
        if self not in trainer.this_run.execution.recorded_callbacks and self._cadence.due_after_step(
            trainer.progress.step
        ):
            self.recorded_update(trainer)

    def is_recordable(self, trainer: RunningTrainer) -> bool:
        """Whether the average moves with every update and on the device alone, so that it can be recorded with it."""
        return self._cadence.in_steps == 1 and not trainer.this_run.updater.skipped.steps

    def recorded_update(self, trainer: RunningTrainer) -> None:
        """Move the average, as a part of a recorded update too."""
        model, applied = trainer.get_model(keep_torch_compile=False), trainer.this_run.updater.applied
        if applied is None:
            self.ema_model.update(model)
        else:
            self.ema_model.update(model, applied)

    def on_train_epoch_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Move the average, if it moves by epochs."""
        if self._cadence.due_after_epoch(trainer.run_history.current_epoch):
            self.ema_model.update(trainer.get_model(keep_torch_compile=False))

    def on_eval_epoch_end(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Evaluate the average after the model was evaluated."""
        if self._evaluates:
            with self._in_place_of_the_model(trainer):
                trainer.parallel.share_buffers(trainer.model)
                data, in_training = trainer._eval_dataloader, trainer.run_history.in_training
                trainer._run_eval_epoch(data, is_training=in_training, is_intermediate=is_intermediate)
            super().on_eval_epoch_end(trainer, is_intermediate)

    def on_training_run_epoch_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Save the average if it is the best so far."""
        if self._evaluates:
            super().on_training_run_epoch_end(trainer)

    def new_value(self, trainer: RunningTrainer, value: float) -> None:
        """Save the average if `value` is the best so far."""
        if self.is_better(value):
            self.best_metric = value
            self._save(trainer, {self.watch_metric: value})

    def on_training_run_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Save the average, if no evaluation could tell which one is best."""
        if not self._evaluates:
            self._save(trainer, {})
        self._handler.call_event("on_training_run_end", trainer)

    def close(self) -> None:
        """Close the callbacks of the average's evaluations."""
        self._handler.end_session()

    def _save(self, trainer: RunningTrainer, extra: dict[str, Any]) -> None:
        with self._in_place_of_the_model(trainer):
            trainer.save_checkpoint(self.save_path, checkpoint_kwargs=extra, save_optimizer=False, save_scheduler=False)

    @contextmanager
    def _in_place_of_the_model(self, trainer: Any) -> Iterator[None]:
        """Let the trainer work with the average, its callbacks and its names of metrics."""
        history = trainer.run_history
        model, handler, prefix = trainer.model, trainer.callback_handler, history.metric_name_prefix
        trainer.model = self.ema_model.module
        trainer.callback_handler = self._handler
        history.set_metric_name_prefix(PREFIX)
        try:
            yield
        finally:
            trainer.model = model
            trainer.callback_handler = handler
            history.set_metric_name_prefix(prefix)

    def state_dict(self) -> dict[str, Any]:
        """Return the averaged weights, the best value and the state of the callbacks."""
        state = {**super().state_dict(), "callbacks": self._handler.state_dict()}
        if self.ema_model is not None:
            state["module"] = local_state_dict(self.ema_model.module)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the average of `state`."""
        super().load_state_dict(state)
        self._handler.load_state_dict(state["callbacks"])
        if self.ema_model is not None:  # before the run starts there is none, and the state comes again after it
            module = self.ema_model.module
            if not load_state(module, state["module"], where="the state of the average"):
                module.load_state_dict(state["module"])
