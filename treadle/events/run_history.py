"""The metrics of each epoch, under the names users know."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from treadle.console.metric_names import find_name
from treadle.errors import ConfigError, UnknownMetricError, did_you_mean
from treadle.events.storage import EventStorage

APART = "evaluation_"
"""What stands before the names of metrics that an evaluation by itself recorded."""
LOSS = "evaluation_loss"
"""What the loss of an evaluation by itself is called, which no training records."""


class RunHistory:
    """The metrics of each epoch: a view of an `EventStorage` with the names users know.

    A subclass may keep the values elsewhere by overriding these methods.

    Attributes:
        in_training: Whether what is recorded now is of a training run; False during an evaluation by itself.
    """

    in_training = True
    metric_name_prefix = ""
    _current_epoch = 1
    _storage: EventStorage | None = None

    def __init__(self, storage: EventStorage | None = None) -> None:
        self._storage = storage

    @property
    def storage(self) -> EventStorage:
        """Where values are kept; made here for a subclass that does not call `super().__init__()`."""
        if self._storage is None:
            self._storage = EventStorage()
        return self._storage

    @property
    def current_epoch(self) -> int:
        """The number of the epoch under way, from 1."""
        return self._current_epoch

    def get_metric_names(self) -> set[str]:
        """Return the names of the metrics recorded."""
        return self.storage.names("epoch")

    def get_metric_values(self, metric_name: str) -> list[Any]:
        """Return every value of a metric, oldest first; an empty list if there is none.

        A metric is found by any name that a door has for it: `gradient_norm` and `grad_norm` are one.
        """
        names = self.get_metric_names()
        found = find_name(metric_name, names)
        return list(self.storage.series(found, "epoch").values) if found in names else []

    def get_latest_metric(self, metric_name: str) -> Any:
        """Return the newest value of a metric, which is found by any name that a door has for it.

        Raises:
            UnknownMetricError: Nothing was recorded under that name.
        """
        names = self.get_metric_names()
        found = find_name(metric_name, names)
        if found not in names:
            raise UnknownMetricError(
                f"no metric {metric_name!r} was recorded{did_you_mean(metric_name, names)}; "
                f"recorded so far: {sorted(names)}"
            )
        return self.storage.series(found, "epoch").values[-1]

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


class EvaluationHistory(RunHistory):
    """What an evaluation by itself records: kept in another history, apart from the metrics of training.

    A metric called `accuracy` is kept as `evaluation_accuracy`, and found by both names while this is in use.

    Args:
        kept: The history of the trainer; what is asked of this one goes there.

    Attributes:
        recorded: For each metric that was recorded, by its own name, the name it is kept under.
    """

    in_training = False

    def __init__(self, kept: RunHistory) -> None:
        super().__init__(kept.storage)
        self._kept = kept
        self._prefix = self.metric_name_prefix = kept.metric_name_prefix
        self.recorded: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        # A history of the user's own may be able to do more.
        return getattr(self._kept, name)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Put the prefix before names here, and not in the other history once more."""
        self._kept.set_metric_name_prefix()
        try:
            yield
        finally:
            self._kept.set_metric_name_prefix(self._prefix)

    @property
    def current_epoch(self) -> int:
        """The number of the epoch under way, from 1."""
        return self._kept.current_epoch

    def results(self) -> dict[str, Any]:
        """Return the newest value of every metric that was recorded, by its own name."""
        found = self.recorded.items()
        return {name.removeprefix(self._prefix): self._kept.get_latest_metric(kept) for name, kept in found}

    def get_metric_names(self) -> set[str]:
        """Return the names of the metrics that are kept, those of training too."""
        return self._kept.get_metric_names()

    def get_metric_values(self, metric_name: str) -> list[Any]:
        """Return every value that is kept under a name."""
        return self._kept.get_metric_values(metric_name)

    def get_latest_metric(self, metric_name: str) -> Any:
        """Return the newest value of a metric: that of this evaluation, if it recorded one."""
        return self._kept.get_latest_metric(self.recorded.get(find_name(metric_name, self.recorded), metric_name))

    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        """Record a value under a name that is not one of training."""
        apart = LOSS if metric_name == LOSS else APART + metric_name
        self._kept.update_metric(self.metric_name_prefix + apart, metric_value)
        self.recorded[self.metric_name_prefix + metric_name] = self.metric_name_prefix + apart

    def delete_metric(self, metric_name: str) -> None:
        """Forget a metric: that of this evaluation, if it recorded one."""
        self._kept.delete_metric(self.recorded.pop(metric_name, metric_name))

    def reset(self) -> None:
        """Forget what this evaluation recorded."""
        for name in list(self.recorded):
            self.delete_metric(name)


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
