"""The model that answers, and the newer one that takes its place."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from treadle.errors import CheckpointError, TreadleError
from treadle.recsys.serve.answers import Answers

logger = logging.getLogger(__name__)
Load = Callable[[Path], Answers]
"""Returns the recommender of a file or folder."""


class LiveModel:
    """Looks after what a recommender was loaded from, and loads it again when it is newer.

    While one is loaded the other answers. What cannot be loaded is told, and the one that is there stays; so it is if
    everything disappears.

    Args:
        place: The file of a model, the folder of a run, or a folder with the runs of which the newest is served.
        load: Loads a recommender.
        changed: Is told of each attempt whether it went well.

    Raises:
        CheckpointError: There is no model.
    """

    def __init__(self, place: Path, load: Load, changed: Callable[[bool], None] = lambda well: None) -> None:
        self._place, self._load, self._changed = place, load, changed
        self._lock = threading.Lock()
        self.source = newest_model(place)
        self._fact = fact_of(self.source)
        self.current = _made_ready(load(self.source))
        self.loaded_at = time.time()
        self.problem = ""
        self._tried = (self.source, self._fact)
        changed(True)

    @property
    def is_there(self) -> bool:
        """Whether what the model was loaded from is there still."""
        return self._fact is not None and fact_of(self.source) is not None

    def look(self) -> bool:
        """Load what is newer, if there is something; return whether there was.

        It is called again and again, by one thread.
        """
        with self._lock:
            try:
                source = newest_model(self._place)
            except CheckpointError as error:
                self._tell(f"{error}; what was loaded from {self.source} is served on")
                return False
            fact = fact_of(source)
            if fact is None or (source, fact) == self._tried:
                return False
            # What cannot be loaded is not tried again before it changes.
            self._tried = (source, fact)
            return self._take(source, fact)

    def _take(self, source: Path, fact: tuple[int, int, int]) -> bool:
        try:
            made = _made_ready(self._load(source))
        except Exception as error:  # whatever is wrong with it, the server goes on with what it has
            self._tell(f"{source} cannot be loaded: {error}; what was loaded from {self.source} is served on")
            self._changed(False)
            return False
        self.current, self.source, self._fact, self.loaded_at = made, source, fact, time.time()
        self.problem = ""
        self._changed(True)
        logger.info("now serving %s", source)
        return True

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            logger.warning("%s", problem)
        self.problem = problem


def _made_ready(recommender: Answers) -> Answers:
    """Do what the first request would have to wait for."""
    tokens = recommender.users.ids, recommender.items.ids, recommender.known
    if len(tokens[1]) > 1:
        with contextlib.suppress(TreadleError):
            recommender.recommend(history=[recommender.items.tokens[1]], k=1)
    return recommender


def fact_of(file: Path) -> tuple[int, int, int] | None:
    """Return what tells a file from another one of its name; None if there is none."""
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


def newest_model(place: Path) -> Path:
    """Return the file of the model that is meant: itself, that of a run, or the newest of a folder.

    Raises:
        CheckpointError: There is none.
    """
    if place.is_file():
        return place
    candidates = [
        *place.glob("*.pth"),
        *place.glob("*/*.pth"),
        *place.glob("export.json"),
        *place.glob("*/export.json"),
    ]
    beside = place.with_name(place.name + ".pth")
    found = [(fact, file) for file in (*candidates, beside) if (fact := fact_of(file)) is not None]
    if not found:
        raise CheckpointError(f"{place} holds no model: there is no .pth file in it, nor {beside.name} beside it")
    return max(found)[1]
