"""A program is run for a few steps, with everybody looking."""

import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError, NonFiniteError
from treadle.loop import Due
from treadle.phase import Phase
from treadle.progress import Cadence
from treadle.tools.doctor.detectors import DETECTORS, Detector
from treadle.tools.doctor.detectors.base import WARMUP_STEPS, Recorder
from treadle.tools.doctor.failures import describe
from treadle.tools.doctor.findings import Examination, Finding, without_effects
from treadle.tools.doctor.processes import STEPS
from treadle.trainer import Trainer

# What stands between a trainer and its verbs, and tells the detectors what happens


class DoctorCallback(TrainerCallback):
    """Shows a run to detectors.

    Args:
        trainer: Whose run it is.
        detectors: Who looks.
        losses: Where the losses of all micro-batches are put.
    """

    def __init__(self, trainer: Trainer, detectors: list[Detector], losses: list[float]) -> None:
        self._trainer, self._detectors, self._losses = trainer, detectors, losses
        self._under_way: tuple[Phase, list[Any]] | None = None
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
        if hasattr(self._trainer, "save_as"):
            # The engine's hooks save by themselves, and here there is no folder.
            names["save_as"] = lambda *arguments, **options: None
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
        undisturbed = self._trainer.progress.step < WARMUP_STEPS
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

    def on_eval_epoch_start(self, trainer: Trainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Say that what comes is evaluation."""
        for detector in self._detectors:
            detector.evaluation = True

    def on_eval_epoch_end(self, trainer: Trainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Say that evaluation is over."""
        for detector in self._detectors:
            detector.evaluation = False

    def on_eval_step_end(self, trainer: Trainer, batch: Any = None, batch_output: Any = None, **kwargs: Any) -> None:
        """Show an evaluation batch."""
        for detector in self._detectors:
            detector.evaluating(batch)

    def attempt(self, phase: Phase, window: list[Any]) -> None:
        """Show the data of an update, and listen until the update is over."""
        self._under_way = (phase, window)
        for detector in self._looking:
            detector.before_update(phase, window)
        self._listening.enter_context(Recorder(self._looking))
        self._attempt(phase, window)

    def look_again(self) -> None:
        """Have the passes that failed watched, which may have been among those that are left undisturbed."""
        if self._under_way is None:
            return
        phase, window = self._under_way
        with ExitStack() as watching, suppress(Exception):
            watching.enter_context(Recorder(self._detectors))
            for detector in self._detectors:
                watching.enter_context(detector.passing())
            self._gradients(replace(phase, silent=True), window)

    def calculate_gradients(self, phase: Phase, window: list[Any]) -> None:
        """Have the passes of an update watched, except those of a detector's own."""
        with ExitStack() as watching:
            for detector in [] if phase.silent else self._looking:
                watching.enter_context(detector.passing())
            self._gradients(phase, window)

    def apply_gradients(self, phase: Phase) -> None:
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


SCRATCH = "treadle-doctor-"
"""What the name of a folder begins with that is made for an examination, and may be written into."""


class _Examined(BaseException):
    """Ends the program once its first training has been looked at; a program's own `except` does not see it."""


def examine(program: Path, steps: int = STEPS, arguments: Sequence[str] = ()) -> Examination:
    """Run a program until it has trained for some steps, and return what is wrong with it.

    Nothing is written into the folder of its run, and the program ends there.

    Args:
        program: A Python program, or a config.
        steps: How many updates to look at.
        arguments: What the program gets on its command line; for a config, changes such as `train.amp.enabled=true`.

    Raises:
        ConfigError: The program is not there, or trains nothing.
    """
    found = Examination()

    def look(trainer: Trainer, variables: dict[str, Any]) -> None:
        shorten(trainer, steps)
        _look(trainer, found, variables)

    run_until_train(program, look, arguments)
    return found


def run_until_train(
    program: Path, train: Callable[[Trainer, dict[str, Any]], None], arguments: Sequence[str] = ()
) -> None:
    """Run a program until it is about to train; then call `train` in the place of that, and end the program.

    Args:
        program: A Python program, or a config.
        train: Called with the trainer, all set up, and with the variables of the program.
        arguments: What the program gets on its command line; for a config, changes of it.

    Raises:
        ConfigError: The program is not there, or trains nothing.
    """
    if not program.is_file():
        raise ConfigError(f"there is no program {program}")
    with _instead_of_training(train), patch.object(sys, "argv", [str(program), *arguments]):
        try:
            if program.suffix == ".py":
                _run_as_program(program)
            # A config trains nothing when it is run.
            _train_config(program, arguments)
        except _Examined:
            return
    raise ConfigError(f"{program} ended without training by a trainer of Treadle")


def _run_as_program(program: Path) -> None:
    try:
        runpy.run_path(str(program), run_name="__main__")
    except ImportError as error:
        # Only a config may import from its neighbours: it is loaded by its path, and is no program.
        if "attempted relative import" not in str(error):
            raise


def _train_config(path: Path, overrides: Sequence[str]) -> None:
    """Begin the run that a config describes, in a folder that is then removed."""
    from treadle.engine.trainers.factory import build_trainer
    from treadle.tools.run_config import load_for_run

    try:
        config = load_for_run(str(path), list(overrides))
    except ConfigError as error:
        raise ConfigError(f"{path} neither trains when it is run, nor is it a config: {error}") from error
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as folder:
        config.train.update(output_dir=folder, resume=False)
        build_trainer(config)(config).train()


@contextmanager
def _instead_of_training(train: Callable[[Trainer, dict[str, Any]], None]) -> Iterator[None]:
    """Have the next training in this process done by somebody else."""
    plain = Trainer.carry_out

    def run_training(trainer: Trainer) -> Any:
        with patch.object(Trainer, "carry_out", plain):
            train(trainer, _program_variables(sys._getframe()))
        raise _Examined

    # Nothing is written, so nobody has to be kept out of the folder of the run, which may not even be there.
    unlocked = patch("treadle.trainer.run_lock", lambda *arguments, **options: nullcontext())
    with patch.object(Trainer, "carry_out", run_training), unlocked:
        yield


def _program_variables(frame: Any) -> dict[str, Any]:
    """Return the variables of the program that is running: those of its outermost lines."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "__main__" and "__file__" in frame.f_globals:
            return dict(frame.f_globals)
        frame = frame.f_back
    return {}


def _look(trainer: Trainer, found: Examination, program: dict[str, Any]) -> None:
    detectors = [kind(trainer, program) for kind in DETECTORS]
    found.seeded, found.device = trainer.seed is not None, trainer.device.type
    found.weights = float(sum(one.detach().double().abs().sum() for one in trainer.model.parameters()))
    probe = DoctorCallback(trainer, detectors, found.losses)
    trainer.callback_handler.add_callback(probe)
    try:
        with probe.attached():
            trainer.carry_out()
    except NonFiniteError as error:
        what, _, todo = str(error).partition("; ")
        found.findings.append(Finding("not_finite", what, todo or "lower the learning rate, or bound the gradient"))
    except Exception as error:
        found.findings.append(describe(error))
        probe.look_again()
    found.steps = trainer.progress.step
    found.findings += [finding for detector in detectors for finding in detector.findings()]
    found.findings = without_effects(found.findings)
    found.notes += [note for detector in detectors for note in detector.notes()]


def shorten(trainer: Trainer, steps: int) -> None:
    """Have a run that is set up end after some steps, evaluate once, and write nothing."""
    settings = trainer.settings
    last = min(steps, settings.max_steps or steps)
    evaluates = Cadence(last, "steps") if settings.eval_every and trainer._eval_dataloader is not None else None
    folder = settings.run_dir if SCRATCH in str(settings.run_dir) else None
    trainer.run_dir = folder
    trainer.this_run.spec = replace(
        settings, max_steps=last, save_every=None, resume=None, eval_every=evaluates, run_dir=folder
    )
    trainer.this_run.due = Due(last=last, log=settings.log_every, evaluate=evaluates)
