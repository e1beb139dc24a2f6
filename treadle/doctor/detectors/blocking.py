"""Lines that make the host wait for the device in every step."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from treadle.doctor.detectors.detector import Detector
from treadle.doctor.finding import Finding, running_line

WAITING = frozenset({"item", "tolist", "cpu", "numpy", "nonzero", "unique", "masked_select", "bincount", "equal"})
WAITING_SLOTS = frozenset({"__bool__", "__float__", "__int__", "__index__", "__format__", "__repr__", "__array__"})
"""What asks a tensor for its values, by the name of the function."""


class Blocking(Detector):
    """Counts, line by line, what would make the host wait for a GPU; a line of every other step counts."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lines: Counter[tuple[str, int]] = Counter()
        self._updates = 0

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Listen to what is asked of tensors."""
        self._updates += 1
        with _Listening() as listening:
            yield
        self._lines.update(listening.lines)

    def findings(self) -> Iterable[Finding]:
        """Return each line that waits in most steps."""
        for (file, line), count in self._lines.items():
            if 2 * count > self._updates:
                yield Finding(
                    "blocks_device",
                    "asks for the value of a tensor in every step, for which a GPU is waited for; keep the value on "
                    "the device and look at it in on_log, or where it decides something, use torch.where",
                    file,
                    line,
                )


class _Listening(TorchFunctionMode):
    """Notes the lines of the user's that ask for values."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: set[tuple[str, int]] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at what is asked, then do it."""
        name = getattr(func, "__name__", "")
        if (name in WAITING or name in WAITING_SLOTS or _takes_a_mask(name, args)) and (line := running_line()):
            self.lines.add(line)
        return func(*args, **(kwargs or {}))


def _takes_a_mask(name: str, args: Any) -> bool:
    """Whether rows are chosen by a mask: how many there are is known when the values are."""
    if name != "__getitem__" or len(args) < 2:
        return False
    chosen = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in chosen)
