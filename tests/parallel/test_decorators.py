"""Functions for one process of several."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.multiprocessing import ProcessRaisedException

from treadle.parallel import (
    Processes,
    local_process_zero_first,
    local_process_zero_only,
    notebook_launcher,
    world_process_zero_only,
)

DECORATORS = [local_process_zero_first, local_process_zero_only, world_process_zero_only]


@pytest.mark.parametrize("decorate", DECORATORS)
def test_a_single_process_calls_the_function_as_it_is(decorate: Callable[..., Any]) -> None:
    @decorate
    def double(number: int, *, more: int = 0) -> int:
        """Return twice the number."""
        return 2 * number + more

    assert double(3, more=1) == 7
    assert (double.__name__, double.__doc__) == ("double", "Return twice the number.")


@pytest.mark.parametrize("decorate", DECORATORS)
def test_what_the_function_raises_comes_through(decorate: Callable[..., Any]) -> None:
    @decorate
    def fail() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        fail()


def note_calls(folder: Path) -> None:
    """Call a function under each decorator; each process notes what it got and what it found there already."""
    processes = Processes("cpu")

    def note(name: str) -> str:
        (folder / f"{name}_{processes.rank}").touch()
        return ",".join(sorted(path.name for path in folder.glob(f"{name}_*")))

    results = [decorate(note)(decorate.__name__) for decorate in DECORATORS]
    (folder / f"results_{processes.rank}").write_text(repr(results))


def test_of_two_processes_the_first_runs_alone_or_before_the_other(tmp_path: Path) -> None:
    notebook_launcher(note_calls, args=(tmp_path,), num_processes=2)
    first, only, world = (decorate.__name__ for decorate in DECORATORS)
    assert (tmp_path / "results_0").read_text() == repr([f"{first}_0", f"{only}_0", f"{world}_0"])
    assert (tmp_path / "results_1").read_text() == repr([f"{first}_0,{first}_1", None, None])


def fail_where_the_other_waits(decorate: Callable[..., Any], folder: Path) -> None:
    processes = Processes("cpu")

    @decorate
    def fail_on_the_first() -> None:
        if processes.is_main:
            raise LookupError("the download failed")

    try:
        fail_on_the_first()
    finally:
        (folder / str(processes.rank)).touch()
        processes.barrier()


@pytest.mark.parametrize("decorate", DECORATORS)
def test_a_failure_in_the_first_process_leaves_no_other_waiting(decorate: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(ProcessRaisedException, match="the download failed"):
        notebook_launcher(fail_where_the_other_waits, args=(decorate, tmp_path), num_processes=2)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}
