"""Failing together: a process that fails tells the others why, and none waits for one that is gone."""

import atexit
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from treadle.errors import StopTrainingError, TreadleError
from treadle.parallel.flight_recorder import keep_record
from treadle.parallel.processes import Processes

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""How often a process looks whether another has failed; among many, more seldom."""
HEARD_SECONDS = 3.0
"""How long a process that failed waits for the others to hear why before it is gone."""
PATIENCE_SECONDS = 60.0
"""How long a process may take to come down by itself after another has failed; one that waits on a GPU never does."""
EXIT_SECONDS = 10.0
"""How long a process that ends waits for a look that is still under way."""

_runs = count()


class Failure(NamedTuple):
    """What a process says of its failure.

    Attributes:
        rank: Its number.
        message: The error, in one line.
        timed_out: Whether it had waited too long for the others.
    """

    rank: int
    message: str
    timed_out: bool


@contextmanager
def failing_together(processes: Processes, folder: Path | None) -> Iterator[None]:
    """Run a block that every process runs: where it fails on one, the others are told why, and come down too.

    Errors of Treadle's own are mostly raised by all processes together, and wishes to stop or leave are agreed upon.

    Args:
        processes: The processes.
        folder: The folder of the run; what torch recorded of collectives is kept in it after a timeout.
    """
    if not processes.distributed:
        yield
        return
    # A connection of its own: whoever waits at the other one would keep it from being asked.
    store: Any = dist.distributed_c10d._get_default_store()
    board = Board(store.clone(), next(_runs), rank=processes.rank, size=processes.size)
    watch = Watch(board, folder)
    try:
        yield
    except (StopTrainingError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        explain(error, board, folder)
        raise
    finally:
        watch.stop()


def explain(error: BaseException, board: "Board", folder: Path | None) -> None:
    """Tell the others of this process's failure; if it only followed from another's, note which in the error."""
    own = Failure(board.rank, _in_one_line(error), timed_out=is_timeout(error))
    first = board.tell(own)
    if own.timed_out:
        kept = "" if folder is None else keep_record(folder, board.rank)
        error.add_note(f"another process is stuck, or has not come here{kept}")
    if first is not None and first.rank != own.rank:
        # What this process has been told with the answer it need not look for: the first one may be gone.
        board.heard()
        if first.message != own.message and not isinstance(error, TreadleError):
            error.add_note(f"process {first.rank} failed first: {first.message}")
    elif first == own and not is_lost_connection(error):
        # One that lost another process has nothing to tell, and that one could not hear it.
        board.wait_until_heard()


def is_timeout(error: BaseException) -> bool:
    """Whether an error says that other processes did not come in time."""
    return isinstance(error, (RuntimeError, TimeoutError)) and bool(re.search(r"timed? ?out", str(error), re.I))


def is_lost_connection(error: BaseException) -> bool:
    """Whether an error says that another process has gone away."""
    return isinstance(error, RuntimeError) and bool(
        re.search(r"connection (closed|reset)|broken pipe", str(error), re.I)
    )


def _in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


class Board:
    """Where the first failure of a run is written for all processes to see.

    Args:
        store: What all of them can read and write.
        run: The number of the run, the same for all of them.
        rank: The number of this process.
        size: How many there are.
    """

    def __init__(self, store: Any, run: int, *, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._store = store
        self._key = f"treadle/failure/{run}"

    def tell(self, failure: Failure) -> Failure | None:
        """Write a failure down if it is the first, and return the first; None if nobody can be asked any more."""
        try:
            found = self._store.compare_set(self._key, "", json.dumps(failure))
        except Exception:  # the process that all meet at may be the one that is gone
            return None
        return Failure(*json.loads(found))

    def look(self) -> Failure | None:
        """Return the first failure; None if there is none.

        Raises:
            Exception: The process that all meet at is gone.
        """
        return Failure(*json.loads(self._store.get(self._key))) if self._store.check([self._key]) else None

    def heard(self) -> None:
        """Say that this process has heard of the failure, if there is still somebody to tell."""
        with suppress(Exception):
            self._store.set(f"{self._key}/{self.rank}", "heard")

    def wait_until_heard(self) -> None:
        """Wait a little, until all other processes have heard of this one's failure."""
        keys = [f"{self._key}/{rank}" for rank in range(self.size) if rank != self.rank]
        deadline = time.monotonic() + HEARD_SECONDS
        with suppress(Exception):
            while not self._store.check(keys) and time.monotonic() < deadline:
                time.sleep(0.05)


class Watch:
    """A thread that looks for failures of other processes, and ends this one if it does not come down by itself.

    Args:
        board: Where failures are written.
        folder: The folder of the run, if it has one.
    """

    def __init__(self, board: Board, folder: Path | None) -> None:
        self._board, self._folder = board, folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="treadle-failures", daemon=True)
        self._thread.start()
        atexit.register(self._stop_at_exit)

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join(LOOK_SECONDS)
        if not self._thread.is_alive():
            atexit.unregister(self._stop_at_exit)

    def _stop_at_exit(self) -> None:
        # A thread that is inside of torch's store when Python ends takes the process down with it.
        self._over.set()
        self._thread.join(EXIT_SECONDS)

    def _run(self) -> None:
        # Among very many processes, the one that is asked by all of them has other things to do too.
        pause = max(LOOK_SECONDS, self._board.size / 200)
        while not self._over.wait(pause):
            try:
                failure = self._board.look()
            except Exception:  # what else holds this process to the one that is gone will fail as well
                return
            if failure is not None and failure.rank != self._board.rank:
                self._come_down(failure)
                return

    def _come_down(self, failure: Failure) -> None:
        logger.error("process %d failed: %s", failure.rank, failure.message)
        if failure.timed_out and self._folder is not None:
            keep_record(self._folder, self._board.rank)
        self._board.heard()
        if not self._over.wait(PATIENCE_SECONDS):
            logger.error("process %d ends: it still waits for process %d, which failed", self._board.rank, failure.rank)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
