"""Lines that make the host wait for the device in every step."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from treadle.callback import MICRO_BATCH_EVENTS, listens
from treadle.errors import CaptureError, some_of
from treadle.execution.cuda_graph.capture_checks import Attributes, no_host_randomness
from treadle.tools.doctor.detectors.base import Detector
from treadle.tools.doctor.findings import Finding, running_line

# Whether a step could be recorded once and replayed


OWN = frozenset({"progress"})


class GraphCapture(Detector):
    """Looks for what a verb does beside its work on the device, which a replay would not do again."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._reasons: dict[str, None] = {}
        callbacks = [one for one in self.trainer.callback_handler.active if _is_foreign(one)]
        listening = [
            type(one).__name__ for one in callbacks if any(listens(one, event) for event in MICRO_BATCH_EVENTS)
        ]
        if listening:
            self._reasons[f"{some_of(listening)} acts on every micro-batch; use on_update_end"] = None

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Watch, while a gradient is computed, what changes in the model and in the program."""
        names = {name: value for name, value in self.program.items() if not name.startswith("__")}
        owners = {"the model": self.trainer.model, "the program": SimpleNamespace(**names)}
        watched = Attributes(owners)
        try:
            with no_host_randomness(self.trainer.device):
                yield
        except CaptureError as error:
            self._reasons[str(error)] = None
        changed = [name.replace("the program.", "") for name in watched.changed()]
        if changed:
            self._reasons[f"the step changes {some_of(changed)}, which a replay would not"] = None

    def findings(self) -> Iterable[Finding]:
        """Return why a step could not be recorded."""
        for reason in self._reasons:
            yield Finding("not_recordable", f"execution='graph' would be refused: {reason}")


def _is_foreign(callback: Any) -> bool:
    return not type(callback).__module__.startswith("treadle.")


WAITING = frozenset({"item", "tolist", "cpu", "numpy", "nonzero", "unique", "masked_select", "bincount", "equal"})
WAITING_SLOTS = frozenset({"__bool__", "__float__", "__int__", "__index__", "__format__", "__repr__", "__array__"})
"""What asks a tensor for its values, by the name of the function."""


class HostSync(Detector):
    """Counts, line by line, what would make the host wait for a GPU; a line of every other step counts."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lines: Counter[tuple[str, int]] = Counter()
        self._updates = 0

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Listen to what is asked of tensors."""
        self._updates += 1
        with _SyncRecorder() as listening:
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


class _SyncRecorder(TorchFunctionMode):
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
