"""Lets writers write."""

from collections.abc import Sequence
from typing import Any

from treadle.engine.hook_base import HookBase
from treadle.errors import ConfigError


class PeriodicWriter(HookBase):
    """Has writers write every so many iterations and at the end, then closes them; put it last.

    Args:
        writers: What writes; each has `write()` and `close()`.
        period: Iterations between two times.
    """

    writes = True

    def __init__(self, writers: Sequence[Any], period: int = 20) -> None:
        if period < 1:
            raise ConfigError(f"PeriodicWriter(period={period}) must be at least 1")
        for writer in writers:
            if not hasattr(writer, "write"):
                raise TypeError(f"{writer!r} is no writer: it has no write(); derive its class from EventWriter")
        self._writers = list(writers)
        self._period = period

    def after_step(self) -> None:
        """Write if it is time."""
        done = self.trainer.iter + 1
        if done % self._period == 0 or done == self.trainer.max_iter:
            for writer in self._writers:
                writer.write()

    def after_train(self) -> None:
        """Write what the end of the run brought, and close; one writer's failure hides no other's."""
        failures: list[Exception] = []
        for writer in self._writers:
            for action in (writer.write, writer.close):
                try:
                    action()
                except Exception as error:
                    failures.append(error)
        for failure in failures[1:]:
            failures[0].add_note(f"another writer failed too: {type(failure).__name__}: {failure}")
        if failures:
            raise failures[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the writers that have one."""
        stateful = {str(place): writer for place, writer in enumerate(self._writers) if hasattr(writer, "state_dict")}
        return {place: writer.state_dict() for place, writer in stateful.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand the writers their states."""
        for place, entry in state.items():
            if int(place) < len(self._writers) and hasattr(self._writers[int(place)], "load_state_dict"):
                self._writers[int(place)].load_state_dict(entry)
