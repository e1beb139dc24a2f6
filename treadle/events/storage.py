"""Where a run puts its metrics: on the device until a log is due, then one copy to the host."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from treadle.errors import UnknownMetricError, did_you_mean
from treadle.events.reading import read_values
from treadle.events.series import Kind, Series
from treadle.progress import Progress


class EventStorage:
    """Metrics by name, put as numbers or device tensors and read from the device only by `flush`.

    Attributes:
        progress: Where the run is; values are put at its step.
        on_flush: Called with the (name, step, value, kind) of everything that came to the host.
    """

    def __init__(self) -> None:
        self.progress = Progress()
        self._series: dict[str, Series] = {}
        self._pending: list[tuple[str, int, Any, Kind]] = []
        self.on_flush: Callable[[list[tuple[str, int, Any, str]]], None] | None = None

    @property
    def step(self) -> int:
        """The step that values put now belong to."""
        return self.progress.step

    def put_scalar(self, name: str, value: Any, *, step: int | None = None, kind: Kind = "step") -> None:
        """Record `value` under `name`; a tensor stays where it is until the next `flush`."""
        if isinstance(value, Tensor):
            value = value.detach()
        self._pending.append((name, self.step if step is None else step, value, kind))

    def flush(self) -> dict[str, Any]:
        """Bring everything pending to the host, one copy in all, and return the latest value of each name."""
        pending, self._pending = self._pending, []
        values = read_values([value for _, _, value, _ in pending])
        latest: dict[str, Any] = {}
        for (name, step, _, kind), value in zip(pending, values, strict=True):
            self._series.setdefault(name, Series(kind)).append(step, value)
            latest[name] = value
        if self.on_flush is not None and pending:
            self.on_flush([(row[0], row[1], value, row[3]) for row, value in zip(pending, values, strict=True)])
        return latest

    def series(self, name: str) -> Series:
        """Return the series called `name`.

        Raises:
            UnknownMetricError: Nothing was put under that name.
        """
        self.flush()
        if name not in self._series:
            known = sorted(self._series)
            raise UnknownMetricError(f"no metric {name!r} was reported{did_you_mean(name, known)}; known: {known}")
        return self._series[name]

    def names(self, kind: Kind | None = None) -> set[str]:
        """Return the names of all metrics, or of those of one kind."""
        self.flush()
        return {name for name, series in self._series.items() if kind in (None, series.kind)}

    def delete(self, name: str) -> None:
        """Forget the metric called `name`."""
        self.flush()
        self._series.pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        """Return every series as plain data."""
        self.flush()
        return {
            name: {"kind": series.kind, "steps": list(series.steps), "values": list(series.values)}
            for name, series in self._series.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace every series by those of `state`."""
        self._pending = []
        self._series = {
            name: Series(entry["kind"], list(entry["steps"]), list(entry["values"])) for name, entry in state.items()
        }
