"""A run's folder while it is trained in: held by the first process, refused to others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from treadle.engine import dist
from treadle.errors import CheckpointError
from treadle.run_status import Occupation, ended


@contextmanager
def occupied(folder: Path, is_done: Callable[[], bool]) -> Iterator[None]:
    """Hold a run's folder during the block, and note in `status.json` how the block ended.

    Args:
        folder: The folder.
        is_done: Whether the run came to its end, asked after the block; otherwise it was stopped.

    Raises:
        CheckpointError: Another process trains in the folder; every process raises it.
    """
    holder, problem = _hold(folder)
    # All refuse together: those that went on would wait for the first one.
    problem = dist.broadcast_from_main(problem)
    if problem:
        raise CheckpointError(problem)
    with ended(holder, is_done):
        yield


def _hold(folder: Path) -> tuple[Occupation | None, str]:
    if not dist.is_main_process():
        return None, ""
    here = dist.get_world_size() // dist.get_num_nodes()
    try:
        return Occupation(folder, processes=dist.get_world_size(), processes_here=here), ""
    except CheckpointError as error:
        return None, str(error)
