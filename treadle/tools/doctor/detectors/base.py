"""What a detector is told of a run."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch.overrides import TorchFunctionMode

from treadle.execution.cuda_graph.capture_errors import OURS
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
    evaluation = False
    """Whether the run evaluates now."""

    def __init__(self, trainer: "Trainer", program: dict[str, Any]) -> None:
        self.trainer = trainer
        self.program = program

    def begin(self) -> None:
        """Called before the first step."""

    def before_update(self, phase: "Phase", window: list[Any]) -> None:
        """Called when the data of an update is there."""

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Entered around the forward and backward passes of an update."""
        yield

    def asked(self, name: str, func: Any, args: Any, options: dict[str, Any]) -> None:
        """Called before every call of a function of torch's, from the update to the evaluation behind it."""

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


# What is asked of torch, and by which line


TREADLE, TORCH = OURS
DOCTOR, OPTIMIZERS = str(Path(__file__).parent), str(Path(TORCH) / "optim")


class Recorder(TorchFunctionMode):
    """Shows calls of torch's functions to detectors.

    There is one for all of them: of two modes the outer one sees the inner one as whoever asks.
    """

    def __init__(self, detectors: Iterable[Detector]) -> None:
        super().__init__()
        self._detectors = [one for one in detectors if type(one).asked is not Detector.asked]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Show what is asked, then do it."""
        options, name = kwargs or {}, getattr(func, "__name__", "")
        for detector in self._detectors:
            detector.asked(name, func, args, options)
        return func(*args, **options)


def running_line() -> tuple[str, int] | None:
    """Return the line that asked torch for what it does now, if it is the user's; None if it is Treadle's."""
    frame: FrameType | None = _outside_the_doctor()
    while frame is not None and frame.f_code.co_filename.startswith(TORCH):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(TREADLE):
        return None
    return frame.f_code.co_filename, frame.f_lineno


def asked_by_torch() -> bool:
    """Whether a function of torch's was called by torch itself, such as by a layer, and not by the program."""
    frame = _outside_the_doctor()
    while frame is not None and frame.f_code.co_filename.endswith(("overrides.py", "functional.py")):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(TORCH)


def asked_by_an_optimizer() -> bool:
    """Whether an optimizer of torch's asks, which keeps its count of steps on the host."""
    frame = _outside_the_doctor()
    return frame is not None and frame.f_code.co_filename.startswith(OPTIMIZERS)


def _outside_the_doctor() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(DOCTOR):
        frame = frame.f_back
    return frame
