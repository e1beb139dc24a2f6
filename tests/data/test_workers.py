"""Fetching workers take no notice of signals while their parent lives, and leave with it."""

import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.forking.starting import start
from treadle.data import Stream
from treadle.runs.preemption import SIGNALS

LIMIT_SECONDS = 60


class Squares(Dataset[Tensor]):
    """The squares of the numbers to twenty."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(index * index)


class Numbers(IterableDataset[Tensor]):
    """The numbers to twenty, shared out between the workers."""

    def __iter__(self) -> Iterator[Tensor]:
        share = torch.utils.data.get_worker_info()
        assert share is not None
        return (torch.tensor(number) for number in range(share.id, 20, share.num_workers))


class Masks(Dataset[Any]):
    """What a program that the data set starts is told of signals by its parent."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        lines = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
        masks = dict(line.split(":\t") for line in lines.splitlines() if line.startswith(("SigBlk", "SigIgn")))
        return torch.tensor([int(masks["SigBlk"], 16), int(masks["SigIgn"], 16)])


def stream_of(loader: DataLoader[Any]) -> Stream:
    stream = Stream(loader, device=torch.device("cpu"))
    stream.begin(0)
    return stream


def signal_all_workers() -> int:
    """Send every signal to every worker, and return how many there are."""
    workers = multiprocessing.active_children()
    for worker in workers:
        for number in SIGNALS:
            assert worker.pid is not None
            os.kill(worker.pid, number)
    return len(workers)


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Any:
    assert multiprocessing.active_children() == []
    yield
    deadline = time.monotonic() + LIMIT_SECONDS
    while multiprocessing.active_children():
        assert time.monotonic() < deadline, "a worker was left behind"
        time.sleep(0.01)


START_METHODS = [
    "fork",
    pytest.param("spawn", marks=pytest.mark.slow),
    pytest.param("forkserver", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("method", START_METHODS)
def test_workers_that_are_sent_signals_go_on_fetching(method: str) -> None:
    stream = stream_of(DataLoader(Squares(), num_workers=2, multiprocessing_context=method))
    # The second worker may just be starting; one that a server forks is safe when it has fetched.
    batches = stream.window(2 if method == "forkserver" else 1)
    for _ in range(4):
        assert signal_all_workers() == 2
        batches += stream.window(3)
    assert [int(batch) for batch in batches] == [number * number for number in range(len(batches))]
    stream.close()


def test_workers_of_a_sequence_that_are_sent_signals_go_on_fetching() -> None:
    stream = stream_of(DataLoader(Numbers(), num_workers=2, batch_size=None))
    batches = stream.window(1)
    assert signal_all_workers() == 2
    while stream.has_next():
        batches += stream.window(1)
    assert sorted(int(batch) for batch in batches) == list(range(20))
    stream.close()


def test_a_function_of_ones_own_for_the_start_of_a_worker_is_called_and_left_where_it_was(tmp_path: Path) -> None:
    def own(worker: int) -> None:
        (tmp_path / str(worker)).touch()

    # A sequence is read by the loader itself; for other data the stream makes one like it.
    sequence = DataLoader(Numbers(), num_workers=2, batch_size=None, worker_init_fn=own)
    for loader in (sequence, DataLoader(Squares(), num_workers=2, worker_init_fn=own)):
        stream = stream_of(loader)
        stream.window(5)
        stream.close()
        assert loader.worker_init_fn is own
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
        for path in tmp_path.iterdir():
            path.unlink()


def test_programs_that_a_data_set_starts_inherit_nothing_of_it() -> None:
    stream = stream_of(DataLoader(Masks(), num_workers=1))
    blocked, ignored = stream.window(1)[0][0].tolist()
    stream.close()
    for number in SIGNALS:
        assert not blocked & (1 << (number - 1))
        assert not ignored & (1 << (number - 1))


def test_this_process_holds_no_signal_back_afterwards() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    stream = stream_of(DataLoader(Squares(), num_workers=1))
    stream.window(1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    stream.close()


def test_workers_that_outlive_a_run_can_be_asked_to_go_and_stay_again_in_the_next() -> None:
    loader = DataLoader(Numbers(), num_workers=2, batch_size=None, persistent_workers=True)
    first = stream_of(loader)
    first.window(1)
    first.close()
    again = stream_of(loader)
    again.window(1)
    assert signal_all_workers() == 2
    assert len(again.window(19)) == 19
    again.close()
    for worker in multiprocessing.active_children():
        worker.terminate()
        worker.join(LIMIT_SECONDS)
        assert worker.exitcode == 0


# The end of the process -----------------------------------------------------------------------------------

PROGRAM = """
import sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, IterableDataset
from treadle.data import Stream

class Slow(IterableDataset):
    def __iter__(self):
        yield torch.tensor(0)
        Path(sys.argv[1], f"stuck_{torch.utils.data.get_worker_info().id}").touch()
        time.sleep(10_000)

loader = DataLoader(Slow(), num_workers=2, batch_size=None, persistent_workers=True)
stream = Stream(loader, device=torch.device("cpu"))
stream.begin(0)
stream.window(1)
while len(list(Path(sys.argv[1]).glob("stuck_*"))) < 2:
    time.sleep(0.01)
Path(sys.argv[1], "ready").touch()
if sys.argv[2] == "stay":
    time.sleep(10_000)
"""


def group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["killed", "of itself"])
def test_workers_in_the_middle_of_a_sample_do_not_outlive_a_process(ending: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path), "stay" if ending == "killed" else "go"]
    running = start("-c", PROGRAM, *arguments, new_session=True)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (tmp_path / "ready").exists():
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if ending == "killed":
        running.kill()
    assert running.wait(LIMIT_SECONDS) == (-signal.SIGKILL if ending == "killed" else 0)
    while group_exists(running.pid):
        assert time.monotonic() < deadline, "workers outlived the process that started them"
        time.sleep(0.01)
