"""What a run reports: scalars on the device until a log is due, then one copy to the host."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from treadle.errors import ConfigError, UnknownMetricError, did_you_mean
from treadle.progress import Progress

Kind = Literal["step", "epoch"]

STEP_WINDOW = 4096
"""How many values of a step scalar stay in memory; the whole curve is in the run's metrics file."""


@dataclass(slots=True)
class Series:
    """The values of one metric with the steps at which they were put."""

    kind: Kind
    steps: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def append(self, step: int, value: Any) -> None:
        """Add one value; a step scalar forgets values beyond its window."""
        self.steps.append(step)
        self.values.append(value)
        if self.kind == "step" and len(self.values) > 2 * STEP_WINDOW:
            del self.steps[:-STEP_WINDOW], self.values[:-STEP_WINDOW]


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


def read_values(values: list[Any]) -> list[Any]:
    """Bring scalar tensors among `values` to the host, with one copy per device and type.

    >>> read_values([torch.tensor(2.0), 3, "a", torch.tensor([1, 2])])
    [2.0, 3, 'a', [1, 2]]
    """
    try:
        # The common case, losses of one kind: no look at each of them is needed.
        if values and values[0].dim() == 0:
            return torch.stack(values).tolist()
    except (TypeError, RuntimeError, AttributeError):
        pass
    return _read_mixed(values)


def _read_mixed(values: list[Any]) -> list[Any]:
    result = list(values)
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, value in enumerate(values):
        if not isinstance(value, Tensor):
            continue
        if value.dim() == 0:
            alike.setdefault((value.device, value.dtype), []).append(position)
        else:
            result[position] = value.item() if value.numel() == 1 else value.tolist()
    for positions in alike.values():
        numbers = torch.stack([values[position] for position in positions]).tolist()
        for position, number in zip(positions, numbers, strict=True):
            result[position] = number
    return result


class RunHistory:
    """The metrics of each epoch: a view of an `EventStorage` with the names users know.

    A subclass may keep the values elsewhere by overriding these methods.
    """

    def __init__(self, storage: EventStorage | None = None) -> None:
        self.storage = EventStorage() if storage is None else storage
        self.metric_name_prefix = ""
        self._current_epoch = 1

    @property
    def current_epoch(self) -> int:
        """The number of the epoch under way, from 1."""
        return self._current_epoch

    def get_metric_names(self) -> set[str]:
        """Return the names of the metrics recorded."""
        return self.storage.names("epoch")

    def get_metric_values(self, metric_name: str) -> list[Any]:
        """Return every value of a metric, oldest first; an empty list if there is none."""
        if metric_name not in self.get_metric_names():
            return []
        return list(self.storage.series(metric_name).values)

    def get_latest_metric(self, metric_name: str) -> Any:
        """Return the newest value of a metric.

        Raises:
            UnknownMetricError: Nothing was recorded under that name.
        """
        names = self.get_metric_names()
        if metric_name not in names:
            raise UnknownMetricError(
                f"no metric {metric_name!r} was recorded{did_you_mean(metric_name, names)}; "
                f"recorded so far: {sorted(names)}"
            )
        return self.storage.series(metric_name).values[-1]

    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        """Record a number, a tensor or other plain data under `metric_name`, after the prefix in force."""
        if not _is_plain(metric_value):
            raise ConfigError(
                f"metric {metric_name!r} was given a {type(metric_value).__name__}; "
                "record a number, a tensor, a string, or lists and dicts of these"
            )
        self.storage.put_scalar(self.metric_name_prefix + metric_name, metric_value, kind="epoch")

    def delete_metric(self, metric_name: str) -> None:
        """Forget a metric."""
        self.storage.delete(metric_name)

    def set_metric_name_prefix(self, prefix: str = "") -> None:
        """Put `prefix` before every name recorded from now on."""
        self.metric_name_prefix = prefix

    def reset(self) -> None:
        """Forget every metric and begin at epoch 1; the prefix stays."""
        for name in self.get_metric_names():
            self.storage.delete(name)
        self._current_epoch = 1

    def _increment_epoch(self) -> None:
        self._current_epoch += 1

    def _set_epoch(self, epoch: int) -> None:
        self._current_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the recorded metrics as plain data."""
        return {"current_epoch": self._current_epoch, "storage": self.storage.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the epoch and the metrics from `state`."""
        self._current_epoch = int(state["current_epoch"])
        self.storage.load_state_dict(state["storage"])


class InMemoryRunHistory(RunHistory):
    """The run history that a trainer makes when it is given none."""


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(entry) for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, Tensor)) or hasattr(value, "__float__")


class NonFinite(NamedTuple):
    """A loss that is nan or infinite: its step, its value, and the loss before it if that is known."""

    step: int
    value: float
    before: float | None


class LossSummary(NamedTuple):
    """What some losses add up to: their weighted sum, their weight, and the first bad one among them."""

    total: float
    weight: float
    nonfinite: NonFinite | None


class LossTracker:
    """The weighted mean of many losses, which stay on the device until somebody asks.

    Two sums are kept: since the last `reset` (an epoch), and since the last `take` (a log). Both are added up
    loss by loss in the same order however often they are read, so that a resumed run gives the same bits.

    Args:
        progress: Where the run is: losses are remembered with the number of the step they belong to.

    Attributes:
        skip_nonfinite: Whether losses that are nan or infinite stay out of the sums.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = Progress() if progress is None else progress
        self.skip_nonfinite = False
        self._taken = LossSummary(0.0, 0.0, None)
        self.reset()

    def reset(self) -> None:
        """Forget every loss."""
        self._steps: list[int] = []
        self._losses: list[Any] = []
        self._weights: list[Any] = []
        self._total = self._count = self._latest = 0.0
        self._taken = LossSummary(0.0, 0.0, None)

    def update(self, loss: Any, batch_size: Any = 1) -> None:
        """Add a mean loss over `batch_size` samples; either may be a tensor on the device."""
        self._steps.append(self.progress.step)
        self._losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
        self._weights.append(batch_size)

    def read(self) -> NonFinite | None:
        """Bring pending losses to the host with one copy; return the first bad one since the last `take`."""
        steps, losses, weights = self._steps, read_values(self._losses), read_values(self._weights)
        self._steps, self._losses, self._weights = [], [], []
        total, weight_since, bad = self._taken
        for step, loss, weight in zip(steps, losses, weights, strict=True):
            if not math.isfinite(loss):
                # The loss of the update under way, after n others, is the loss of step n + 1.
                bad = bad or NonFinite(step + 1, loss, self._latest if self._count else None)
                if self.skip_nonfinite:
                    continue
            self._total += loss * weight
            self._count += weight
            total += loss * weight
            weight_since += weight
            self._latest = loss
        self._taken = LossSummary(total, weight_since, bad)
        return bad

    def take(self) -> LossSummary:
        """Return what the losses since the last time add up to."""
        self.read()
        taken, self._taken = self._taken, LossSummary(0.0, 0.0, None)
        return taken

    @property
    def total_loss(self) -> float:
        """The sum of all losses, each times its batch size."""
        self.read()
        return self._total

    @property
    def running_count(self) -> float:
        """The number of samples over all losses."""
        self.read()
        return self._count

    @property
    def loss_value(self) -> float:
        """The newest loss."""
        self.read()
        return self._latest

    @property
    def average(self) -> float:
        """The mean loss over all samples; nan before the first."""
        return self.total_loss / self.running_count if self.running_count else math.nan

    def state_dict(self) -> dict[str, Any]:
        """Return the sums as plain data."""
        self.read()
        return {"total": self._total, "count": self._count, "latest": self._latest, "taken": self._taken[:2]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the sums from `state`."""
        self.reset()
        self._total, self._count = float(state["total"]), float(state["count"])
        self._latest = float(state["latest"])
        total, weight = state["taken"]
        self._taken = LossSummary(float(total), float(weight), None)
