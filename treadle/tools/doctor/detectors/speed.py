"""Lines that make the host wait for the device in every step, and what keeps a step from being recorded."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from treadle.callback import MICRO_BATCH_EVENTS, listens
from treadle.errors import CaptureError, some_of
from treadle.execution.cuda_graph.capture_checks import Attributes, no_host_randomness
from treadle.tools.doctor.detectors.base import Detector, asked_by_an_optimizer, running_line
from treadle.tools.doctor.findings import Finding

# Whether a step could be recorded once and replayed


ANYWAY = "take it out of the step, or leave execution= as it is: nothing else needs this"


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
            what, _, todo = reason.partition("; ")
            yield Finding("not_recordable", f"execution='graph' would be refused: {what}", todo or ANYWAY)


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

    def before_update(self, phase: Any, window: list[Any]) -> None:
        """Begin to listen."""
        self._updates += 1
        self._heard: set[tuple[str, int]] = set()

    def asked(self, name: str, func: Any, args: Any, options: dict[str, Any]) -> None:
        """Note the user's line, once in an update, if it asks for values."""
        if name in WAITING or name in WAITING_SLOTS or _takes_a_mask(name, args):
            line = None if asked_by_an_optimizer() else running_line()
            self._heard |= {line} if line is not None else set()

    def after_update(self) -> None:
        """Count the lines."""
        self._lines.update(self._heard)

    def findings(self) -> Iterable[Finding]:
        """Return each line that waits in most steps."""
        for (file, line), count in self._lines.items():
            if 2 * count > self._updates:
                yield Finding(
                    "blocks_device",
                    "asks for the value of a tensor in every step, for which a GPU is waited for",
                    "keep the value on the device and look at it in on_log; where it decides something, use "
                    "torch.where",
                    file,
                    line,
                )


def _takes_a_mask(name: str, args: Any) -> bool:
    """Whether rows are chosen by a mask: how many there are is known when the values are."""
    if name != "__getitem__" or len(args) < 2:
        return False
    chosen = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in chosen)
