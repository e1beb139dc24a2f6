"""What a doctor finds."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from treadle.execution.cuda_graph.capture_errors import OURS

TREADLE, TORCH = OURS


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a program.

    Attributes:
        kind: The kind of fault, such as "no_gradient".
        message: What is wrong, and what to do.
        file: The program's file it is in, if there is a line to point to.
        line: The line.
    """

    kind: str
    message: str
    file: str = ""
    line: int = 0

    @property
    def place(self) -> str:
        """The line as "file.py:12", or nothing."""
        return f"{Path(self.file).name}:{self.line}" if self.line else ""


@dataclass(frozen=True)
class Note:
    """Something that was measured, and is no fault.

    Attributes:
        kind: What was measured: "memory", "graph".
        message: The numbers, in words.
    """

    kind: str
    message: str


def running_line() -> tuple[str, int] | None:
    """Return the line that asked torch for what it does now, if it is the user's; None if it is Treadle's."""
    # This function's own frame, and that of the mode that asks.
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(TORCH):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(TREADLE):
        return None
    return frame.f_code.co_filename, frame.f_lineno
