"""What a detector is told of a run."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from treadle.tools.doctor.findings import Finding, Note

if TYPE_CHECKING:
    from treadle.phase import Phase
    from treadle.trainer import Trainer


WARMUP_STEPS = 5
"""Steps at the beginning that only light detectors look at: their time is that of the program."""


class Detector:
    """Looks at a run of a few steps for faults of one kind; override what it needs to be told.

    Args:
        trainer: The trainer, set up and about to run.
        program: The variables of the program that built it.
    """

    light = False
    """Whether it looks at all steps, for it takes no time; others leave the first ones undisturbed."""

    def __init__(self, trainer: "Trainer", program: dict[str, Any]) -> None:
        self.trainer = trainer
        self.program = program

    def begin(self) -> None:
        """Called before the first step."""

    def before_update(self, phase: "Phase", window: list[Any]) -> None:
        """Called when the data of an update is there."""

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Entered around every update and the callbacks at its end."""
        yield

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Entered around the forward and backward passes of an update."""
        yield

    def after_loss(self, batch: Any, output: dict[str, Any]) -> None:
        """Called when the loss of a micro-batch is there."""

    def after_gradients(self) -> None:
        """Called when the gradient of an update is complete, before it is applied."""

    def after_update(self) -> None:
        """Called after every update."""

    def evaluating(self, batch: Any) -> None:
        """Called after the loss of every evaluation batch."""

    def findings(self) -> Iterable[Finding]:
        """Return what was found, once the run is over."""
        return ()

    def notes(self) -> Iterable[Note]:
        """Return what was measured, once the run is over."""
        return ()
