"""What stands between a trainer and its verbs, and tells the detectors what happens."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from treadle.callback import TrainerCallback
from treadle.doctor.detectors import Detector
from treadle.doctor.detectors.detector import UNDISTURBED
from treadle.trainer import Trainer

if TYPE_CHECKING:
    from treadle.phase import Phase


class Probe(TrainerCallback):
    """Shows a run to detectors.

    Args:
        trainer: Whose run it is.
        detectors: Who looks.
        losses: Where the losses of all micro-batches are put.
    """

    def __init__(self, trainer: Trainer, detectors: list[Detector], losses: list[float]) -> None:
        self._trainer, self._detectors, self._losses = trainer, detectors, losses
        self._listening = ExitStack()
        self._gradients = trainer.calculate_gradients
        self._apply = trainer.apply_gradients

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Be in the place of the trainer's verbs."""
        names = {
            "calculate_gradients": self.calculate_gradients,
            "apply_gradients": self.apply_gradients,
        }
        run, updater = self._trainer.this_run, self._trainer.this_run.updater
        self._attempt, self._after = updater.attempt, run.after_update
        vars(self._trainer).update(names)
        vars(updater).update(attempt=self.attempt)
        vars(run).update(after_update=self.after_update)
        try:
            yield
        finally:
            vars(updater).pop("attempt", None)
            vars(run).pop("after_update", None)
            self._listening.close()
            for name in names:
                vars(self._trainer).pop(name, None)

    @property
    def _looking(self) -> list[Detector]:
        """Those who look at the step under way."""
        undisturbed = self._trainer.progress.step < UNDISTURBED
        return [detector for detector in self._detectors if detector.light or not undisturbed]

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Begin."""
        for detector in self._detectors:
            detector.begin()

    def on_train_step_end(
        self, trainer: Trainer, batch: Any = None, batch_output: Any = None, step: int = 0, **kwargs: Any
    ) -> None:
        """Show the loss of a micro-batch."""
        self._losses.append(float(batch_output["loss"].detach()))
        for detector in self._looking:
            detector.after_loss(batch, batch_output)

    def on_eval_step_end(self, trainer: Trainer, batch: Any = None, batch_output: Any = None, **kwargs: Any) -> None:
        """Show an evaluation batch."""
        for detector in self._detectors:
            detector.evaluating(batch)

    def attempt(self, phase: "Phase", window: list[Any]) -> None:
        """Show the data of an update, and listen until the update is over."""
        for detector in self._looking:
            detector.before_update(phase, window)
        for detector in self._looking:
            self._listening.enter_context(detector.updating())
        self._attempt(phase, window)

    def calculate_gradients(self, phase: "Phase", window: list[Any]) -> None:
        """Have the passes of an update watched, except those of a detector's own."""
        with ExitStack() as watching:
            for detector in [] if phase.silent else self._looking:
                watching.enter_context(detector.passing())
            self._gradients(phase, window)

    def apply_gradients(self, phase: "Phase") -> None:
        """Show the gradient."""
        for detector in self._looking:
            detector.after_gradients()
        self._apply(phase)

    def after_update(self) -> None:
        """Show what the update left."""
        looking = self._looking
        self._after()
        self._listening.close()
        for detector in looking:
            detector.after_update()
