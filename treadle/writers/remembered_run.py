"""Which run of a tracking service this is, so that a restart adds to the same curves."""

import json
import logging
import os
from pathlib import Path

from treadle.errors import ConfigError
from treadle.events.storage import Life
from treadle.files.atomic_io import replace_text
from treadle.writers.unwritten import Rows

logger = logging.getLogger(__name__)


class RememberedRun:
    """The id of a run at a tracking service and how far each of its curves goes, in a small file.

    Such a service takes nothing back. A run that goes on from a checkpoint therefore keeps its id, and what it
    computes a second time is not sent a second time: it would be the same.

    Args:
        path: The file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._sent: dict[str, int] = {}

    def begin(self, life: Life) -> str | None:
        """Return the id of the run to go on with; None if a new one begins.

        Raises:
            ConfigError: The file is there and says nothing of the kind.
        """
        self._sent = {}
        if life.kept < 0:
            return None
        if not self._path.exists():
            logger.warning(
                "%s is not there: what the run reports from now on goes to a new run of the service", self._path
            )
            return None
        try:
            remembered = json.loads(self._path.read_text(encoding="utf-8"))
            self._sent = {name: int(iteration) for name, iteration in remembered["sent"].items()}
            return str(remembered["id"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self._path} does not say which run this is; remove it to begin a new one") from error

    def unsent(self, rows: Rows) -> Rows:
        """Return what of `rows` is beyond the end of its curve."""
        new = {
            iteration: {name: value for name, value in values.items() if iteration > self._sent.get(name, -1)}
            for iteration, values in sorted(rows.items())
        }
        return {iteration: values for iteration, values in new.items() if values}

    def remember(self, run_id: str, rows: Rows) -> None:
        """Take note that `rows` were sent to `run_id`."""
        for iteration, values in rows.items():
            self._sent.update(dict.fromkeys(values, iteration))
        replace_text(self._path, json.dumps({"id": run_id, "sent": self._sent}, sort_keys=True) + "\n")
