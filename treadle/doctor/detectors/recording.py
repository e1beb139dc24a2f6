"""Whether a step could be recorded once and replayed."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from treadle.callback import MICRO_BATCH_EVENTS, listens
from treadle.doctor.detectors.detector import Detector, shortened
from treadle.doctor.finding import Finding
from treadle.errors import CaptureError
from treadle.execution.side_effects import Attributes, no_host_randomness

OWN = frozenset({"progress"})


class Recording(Detector):
    """Looks for what a verb does beside its work on the device, which a replay would not do again."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._reasons: dict[str, None] = {}
        callbacks = [one for one in self.trainer.callback_handler.active if _is_foreign(one)]
        listening = [
            type(one).__name__ for one in callbacks if any(listens(one, event) for event in MICRO_BATCH_EVENTS)
        ]
        if listening:
            self._reasons[f"{shortened(listening)} acts on every micro-batch; use on_update_end"] = None

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
            self._reasons[f"the step changes {shortened(changed)}, which a replay would not"] = None

    def findings(self) -> Iterable[Finding]:
        """Return why a step could not be recorded."""
        for reason in self._reasons:
            yield Finding("not_recordable", f"execution='graph' would be refused: {reason}")


def _is_foreign(callback: Any) -> bool:
    return not type(callback).__module__.startswith("treadle.")
