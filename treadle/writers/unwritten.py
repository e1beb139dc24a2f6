"""What a writer has not written yet."""

from collections.abc import Mapping
from typing import Any

from treadle.errors import ConfigError
from treadle.events.names import MEASURED
from treadle.events.storage import EventStorage, Life, shown

Rows = dict[int, dict[str, Any]]
"""Values by name, for each iteration that has new ones, in order."""


class Unwritten:
    """Remembers how far a writer has read a storage.

    Args:
        window_size: Over how many iterations the median is taken of metrics that are to be smoothed.

    Attributes:
        mark: The sequence number of the newest value that was taken.
    """

    def __init__(self, window_size: int) -> None:
        if window_size < 1:
            raise ConfigError(f"window_size={window_size} shows nothing; use at least 1")
        self._window_size = window_size
        self._life: Life | None = None
        self.mark = 0

    def new_life(self, storage: EventStorage) -> Life | None:
        """Return the life of the run if it is another than the last time, else None."""
        if storage.life is self._life:
            return None
        self._life = storage.life
        self.mark = storage.life.sequence
        return self._life

    def take(self, storage: EventStorage, written: Mapping[str, int] | None = None) -> Rows:
        """Return the newest value of every metric that has a new one, and take it as written.

        Args:
            storage: Where to look.
            written: For a writer that can tell what it wrote in earlier lives, the last iteration by name: what
                was put before a checkpoint and not written before a crash is returned then.
        """
        newest = storage.newest()
        rows: Rows = {}
        for name in sorted(newest):
            series = newest[name]
            missed = written is not None and series.sequence == 0 and series.steps[-1] > written.get(name, -1)
            # How long things took is reported at every step, but not at the first ones after a start: an old value
            # would make a row that a run without a kill does not have.
            missed = missed and name not in MEASURED
            if series.sequence > self.mark or missed:
                rows.setdefault(series.steps[-1], {})[name] = shown(series, self._window_size)
        self.mark = storage.sequence
        return dict(sorted(rows.items()))


def numbers_in(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in `values`: lists by their places, dicts by their keys, words not at all.

    >>> numbers_in({"loss": 2, "recall": [0.5, 1.0], "by class": {"cat": 0.25}, "note": "x"})
    {'loss': 2.0, 'recall/0': 0.5, 'recall/1': 1.0, 'by class/cat': 0.25}
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, (list, tuple)):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            found |= numbers_in({f"{name}/{key}": entry for key, entry in value.items()})
        elif value is not None and not isinstance(value, str):
            found[name] = float(value)
    return found
