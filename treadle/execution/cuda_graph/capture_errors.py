"""Why a step cannot be recorded, in words, with the line and the remedy."""

import re
import traceback
from pathlib import Path
from types import TracebackType

import torch

import treadle.errors
from treadle.errors import CaptureError

OURS = (str(Path(treadle.errors.__file__).parent), str(Path(torch.__file__).parent))
WAITING = (
    "the step makes the host wait for the device (.item(), print or `if` of a tensor, x[mask], nonzero, unique, "
    "one_hot without num_classes); keep the value on the device, with torch.where or a product with the mask, and "
    "look at it in on_update_end or on_log"
)
COPYING = (
    "the step copies between host and device (.cpu(), torch.tensor(..., device=), .cuda()); make the tensor once, "
    "outside of the step, or with torch.full on the device"
)
REMEDIES: tuple[tuple[str, str], ...] = (
    ("CPU and CUDA tensors during CUDA graph capture", COPYING),
    ("capturable", "the optimizer's step cannot be recorded; use one with capturable=True, such as AdamW or SGD"),
    ("closure", "an optimizer with a closure, such as LBFGS, cannot be recorded; use execution='eager'"),
    (
        "generator not in capture mode",
        "a generator of your own draws in the step; make it an attribute of the model or the trainer, on the device",
    ),
    (
        "transform: failed to synchronize",
        "a sparse product or sparse optimizer synchronises in its backward pass; write it as an autograd function of "
        "your own, or use execution='eager'",
    ),
    (
        "make the legacy stream depend",
        "something keeps the graph of an earlier step alive, such as a loss, an output or a hidden state in an "
        "attribute; keep it detached, or drop it before the next step makes its own",
    ),
    ("ALLOCATION_FAILED", "a library allocates in its first call; run that part once before the first step"),
    ("out of memory", "there is not enough memory for a recorded step beside an ordinary one; use a smaller batch"),
    ("Cannot prepare for replay", "compile='reduce-overhead' records by itself; use compile=True"),
    ("not permitted when stream is capturing|synchronizing CUDA operation|previous error during capture", WAITING),
)


def explain(error: BaseException) -> CaptureError:
    """Return the error to show: the first cause, the user's line, the remedy."""
    cause = first_cause(error)
    if isinstance(cause, CaptureError):
        return cause
    text = next((line.strip() for line in str(cause).splitlines() if line.strip()), "")
    remedy = next((remedy for pattern, remedy in REMEDIES if re.search(pattern, str(cause), re.IGNORECASE)), None)
    said = f"{type(cause).__name__}: {text}"
    return CaptureError("; ".join(filter(None, [remedy or said, where(cause.__traceback__), remedy and f"({said})"])))


def first_cause(error: BaseException) -> BaseException:
    """Return the error that came first: the one of the recording's end only says that something went wrong."""
    while error.__context__ is not None and not isinstance(error, CaptureError):
        error = error.__context__
    return error


def where(trace: TracebackType | None) -> str:
    """Return the innermost line of the user's in a traceback, as "at file.py:12: code"; nothing if there is none."""
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(OURS)]
    return f"at {place(frames[-1])}" if frames else ""


def callers_line() -> str:
    """Return the innermost line of the user's that is running now."""
    frames = [frame for frame in traceback.extract_stack() if not frame.filename.startswith(OURS)]
    return f"at {place(frames[-1])}" if frames else ""


def place(frame: traceback.FrameSummary) -> str:
    """Return a line of a program as "file.py:12: code"."""
    return f"{Path(frame.filename).name}:{frame.lineno}: {(frame.line or '').strip()}".rstrip(": ")
