"""The metrics of each epoch, under the names users know."""

from typing import Any

from torch import Tensor

from treadle.errors import ConfigError, UnknownMetricError, did_you_mean
from treadle.events.storage import EventStorage


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
