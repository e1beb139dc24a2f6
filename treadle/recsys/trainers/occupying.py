"""The folder of a run while it is trained in: held by the first process, refused to others."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treadle.errors import CheckpointError
from treadle.parallel import Processes
from treadle.run_status import Occupation, ended


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
    with ended(holder):
        yield


def _hold(folder: Path, processes: Processes) -> tuple[Occupation | None, str]:
    if not processes.is_main:
        return None, ""
    try:
        return Occupation(folder, processes=processes.size, processes_here=processes.size), ""
    except CheckpointError as error:
        return None, str(error)
