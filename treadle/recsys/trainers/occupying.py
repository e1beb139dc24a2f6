"""The folder of a run while it is trained in: held by the first process, refused to others."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treadle.errors import CheckpointError
from treadle.leaving import PreemptedExit
from treadle.parallel import Processes
from treadle.run_status import FAILED, FINISHED, STOPPED, Occupation


@contextmanager
def occupied(folder: Path | None, processes: Processes) -> Iterator[None]:
    """Hold the folder of a run during the block, and note in it how the block ended; without a folder do nothing.

    Raises:
        CheckpointError: Another process trains in the folder; every process raises it.
    """
    holder, problem = _hold(folder, processes) if folder is not None else (None, "")
    # All refuse together: those that went on would wait for the first one.
    problem = processes.share(problem)
    if problem:
        raise CheckpointError(problem)
    try:
        yield
    except BaseException as error:
        if holder is not None:
            left = isinstance(error, (PreemptedExit, KeyboardInterrupt))
            holder.end(STOPPED if left else FAILED, str(error) if left else f"{type(error).__name__}: {error}")
        raise
    if holder is not None:
        holder.end(FINISHED)


def _hold(folder: Path, processes: Processes) -> tuple[Occupation | None, str]:
    if not processes.is_main:
        return None, ""
    try:
        return Occupation(folder, processes=processes.size, processes_here=processes.size), ""
    except CheckpointError as error:
        return None, str(error)
