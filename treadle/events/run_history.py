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
        return list(self.storage.series(metric_name, "epoch").values)

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
        return self.storage.series(metric_name, "epoch").values[-1]

    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        """Record a number, a tensor or other plain data under `metric_name`, after the prefix in force."""
        value = _plain(metric_name, metric_value)
        self.storage.put_scalar(self.metric_name_prefix + metric_name, value, kind="epoch")

    def delete_metric(self, metric_name: str) -> None:
        """Forget a metric."""
        self.storage.delete(metric_name, "epoch")

    def set_metric_name_prefix(self, prefix: str = "") -> None:
        """Put `prefix` before every name recorded from now on."""
        self.metric_name_prefix = prefix

    def reset(self) -> None:
        """Forget every metric, scalars of steps included, and begin at epoch 1; the prefix stays."""
        self.storage.clear()
        self._current_epoch = 1

    def _increment_epoch(self) -> None:
        self._current_epoch += 1

    def _set_epoch(self, epoch: int) -> None:
        self._current_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, the iteration and the recorded metrics as plain data."""
        return {
            "current_epoch": self._current_epoch,
            "iteration": self.storage.iter,
            "storage": self.storage.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the epoch and the metrics from `state`."""
        self._current_epoch = int(state["current_epoch"])
        # Without the iteration a writer could not tell what of its lines is to be written again.
        self.storage.load_state_dict(state["storage"], iteration=state.get("iteration"))


class InMemoryRunHistory(RunHistory):
    """The run history that a trainer makes when it is given none."""


def _plain(name: str, value: Any) -> Any:
    """Return `value` as numbers, strings, tensors, lists and dicts, which a checkpoint can hold."""
    if value is None or isinstance(value, (bool, int, float, str, Tensor)):
        return value
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(name, entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(name, entry) for entry in value]
    if hasattr(value, "tolist"):
        return _plain(name, value.tolist())
    if hasattr(value, "__float__"):
        return float(value)
    raise ConfigError(
        f"metric {name!r} was given a {type(value).__name__}; "
        "record a number, a tensor, a string, or lists and dicts of these"
    )
