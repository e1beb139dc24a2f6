"""What the writers of files have in common."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.events import get_event_storage
from treadle.writers.event_writer import EventWriter
from treadle.writers.row_file import RowFile, RowForm
from treadle.writers.unwritten import Rows, Unwritten

logger = logging.getLogger(__name__)


class RowWriter(EventWriter):
    """Writes one row for each iteration that has new values, the newest of each metric.

    Rows are in order and none is there twice: values that come later for an iteration go into its row, and a run
    that goes on from a checkpoint first cuts off the rows after it. A file of another run, which this one does not
    go on from, is kept with a number behind its name. Rows that cannot be written wait for the next time, so that
    a full disk stops no run.

    Args:
        path: The file.
        make_form: Makes the form of an empty file, which says how rows are written down.
        window_size: Over how many iterations the median is taken of metrics that are to be smoothed.
    """

    def __init__(self, path: str | os.PathLike[str], make_form: Callable[[], RowForm], window_size: int) -> None:
        self._path = Path(path)
        self._file = RowFile(self._path, make_form)
        self._unwritten = Unwritten(window_size)
        self._waiting: Rows = {}
        self._begun = False
        self._saved_last: int | None = None

    def write(self) -> None:
        """Write a row for each iteration with new values."""
        storage = get_event_storage()
        life = self._unwritten.new_life(storage)
        if life is not None:
            self._waiting = {}
            was_there = self._path.exists()
            self._file.begin(life.kept, self._saved_last)
            self._tell_of_gap(life.kept, was_there=was_there)
            self._begun, self._saved_last = True, None
        for iteration, values in self._unwritten.take(storage, self._file.written).items():
            self._waiting[iteration] = self._waiting.get(iteration, {}) | values
        self._put_waiting()

    def close(self) -> None:
        """Force the rows out to the disk."""
        if self._begun:
            self._put_waiting()
            if self._waiting:
                logger.warning("%s lacks the rows of the iterations %s", self._path, sorted(self._waiting))
            self._file.sync()

    def state_dict(self) -> dict[str, Any]:
        """Return which row is the last that was written."""
        if self._begun:
            return {"last": self._file.last}
        return {"last": -1 if self._saved_last is None else self._saved_last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the rows cut off that were written after the run was saved, such as the last one of a run that left."""
        self._saved_last = int(state["last"])

    def _tell_of_gap(self, kept: int, *, was_there: bool) -> None:
        """Say where a run that goes on has no longer, or never had, the rows of before."""
        if self._saved_last is None and kept >= 0 and not was_there:
            logger.warning("there was no %s to go on with: it has rows of after iteration %d only", self._path, kept)
        elif self._saved_last is not None and self._file.last < self._saved_last:
            logger.warning(
                "%s lacks rows that it had when the run was saved, after iteration %d and up to %d; the run goes on "
                "without them",
                self._path,
                self._file.last,
                self._saved_last,
            )

    def _put_waiting(self) -> None:
        try:
            self._put()
        except FileNotFoundError:
            logger.warning("%s was removed while the run went on; it begins anew, without its earlier rows", self._path)
            self._file.begin_anew()
            self._put_waiting()
        except OSError as error:
            logger.warning("rows of metrics wait to be written to %s: %s", self._path, error)

    def _put(self) -> None:
        self._file.put(dict(sorted(self._waiting.items())))
        self._waiting = {}
