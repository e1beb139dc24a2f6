"""What a program failed with, with its own line and what to do about the errors that everybody meets."""

import re
import traceback
from pathlib import Path

from treadle.errors import TreadleError
from treadle.tools.doctor.detectors.base import TORCH, TREADLE
from treadle.tools.doctor.findings import Finding

REMEDIES: tuple[tuple[str, str], ...] = (
    (
        "does not require grad|loss without a graph",
        "the loss was computed without a graph: look for torch.no_grad(), .detach(), .item() or .data between the "
        "weights and the loss",
    ),
    (
        "backward through the graph a second time",
        "something of an earlier step is still part of the loss, such as a hidden state; detach it between steps",
    ),
    ("Target .* is out of bounds", "labels must be whole numbers from 0 to the number of scores, less one"),
    ("expected scalar type Long|expected floating point type for target", "the loss wants classes: labels.long()"),
    ("Found dtype|expected scalar type|must have the same dtype", "give all of them one dtype: inputs.float()"),
    ("mat1 and mat2 shapes cannot be multiplied", "the layer was made for another number of features than it is given"),
    ("Expected more than 1 value per channel", "batch norm needs more than one sample: larger batches, or drop_last"),
    ("size of tensor a .* must match", "two tensors that do not fit are combined; print their shapes on that line"),
    ("modified by an inplace operation", "write the line without the in-place operation: x = x + y, not x += y"),
    ("Expected all tensors to be on the same device", "move what was made on the line to the device of the inputs"),
    ("index out of range in self", "a number is not below num_embeddings of the embedding; count its largest one"),
    ("out of memory", "use smaller batches and gradient_accumulation_steps="),
)
"""What to do, by what the message of an error contains."""


def describe(error: BaseException) -> Finding:
    """Return the error of a step as a finding."""
    # An error of Treadle's says what to do behind a semicolon.
    text, _, told = str(error).partition("; ") if isinstance(error, TreadleError) else (str(error), "", "")
    text = " ".join(f"{type(error).__name__}: {text}".split())
    remedy = next((remedy for pattern, remedy in REMEDIES if re.search(pattern, str(error))), " ".join(told.split()))
    own = [
        (frame.filename, frame.lineno or 0)
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).suffix == ".py" and not frame.filename.startswith((TREADLE, TORCH))
    ]
    file, line = own[-1] if own else ("", 0)
    return Finding("fails", text, remedy or "run the program by itself to see the whole error", file, line)
