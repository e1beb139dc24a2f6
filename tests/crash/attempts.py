"""Starts the program as real processes, kills them, and compares what they leave behind."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Collection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.crash.program import OUTCOME, UPDATES, Options, die_at_operation, train
from tests.forking.children import server
from tests.interrupting import metric_lines
from tests.storages import storage_in
from treadle.checkpoint import read_file

LIMIT_SECONDS = 120
"""How long an attempt may take before it counts as hung; an ordinary one takes one or two."""


class Attempt:
    """One start of the program: a process of its own, in a group of its own."""

    def __init__(self, options: Options) -> None:
        options.folder.mkdir(parents=True, exist_ok=True)
        self.folder = options.folder
        self._process: ForkServerProcess = server.Process(target=_run, args=(options,))
        self._process.start()

    def send(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the process, or to its workers too; one that has ended takes no notice."""
        assert self._process.pid is not None
        if not self.running():
            # Its number may be that of a stranger by now.
            return
        try:
            (os.killpg if group else os.kill)(self._process.pid, number)
        except ProcessLookupError:
            # It ended, or was killed before it had a group.
            self._process.kill()

    def kill(self) -> bool:
        """Kill the process and its workers; return whether it was still running."""
        self.send(signal.SIGKILL, group=True)
        return self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Wait for the end and return the exit status, negative for a signal."""
        self._process.join(LIMIT_SECONDS)
        if self._process.exitcode is None:
            self.send(signal.SIGKILL, group=True)
            raise AssertionError(f"the program hung:\n{self.output}")
        return self._process.exitcode

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.is_alive()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds or the process has ended."""
        while self.running() and not condition():
            time.sleep(0.001)

    def wait_for_file(self, name: str) -> None:
        """Wait until the program has made a file in its folder."""
        self.wait_until((self.folder / name).exists)
        assert (self.folder / name).exists(), self.output

    def wait_for_workers(self) -> None:
        """Wait until no process of the group runs any more."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while self._group_exists():
            assert time.monotonic() < deadline, "fetching workers outlived the process that started them"
            time.sleep(0.01)

    def _group_exists(self) -> bool:
        assert self._process.pid is not None
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    @property
    def output(self) -> str:
        """All that this attempt and earlier ones printed."""
        path = self.folder / "output.txt"
        return path.read_text() if path.exists() else ""


def _run(options: Options) -> None:
    os.setsid()
    # The fetching workers are forked, as in a program that was started from a shell.
    multiprocessing.set_start_method("fork", force=True)
    with (options.folder / "output.txt").open("a") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    train(options)


def run_killed(act: Callable[[Path, str], None], folder: Path, operation: int, storage: str = "folder") -> int:
    """Run `act` in a process that is killed at one of its operations on the folder; return how it ended."""
    process = server.Process(target=_act, args=(act, folder, operation, storage))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _act(act: Callable[[Path, str], None], folder: Path, operation: int, storage: str) -> None:
    die_at_operation(folder, operation)
    act(folder, storage)


def finish(options: Options) -> None:
    """Run the program to its end."""
    attempt = Attempt(options)
    assert attempt.wait() == 0, attempt.output


def kill_until_finished(options: Options, kills: int, chance: random.Random, longest: float) -> int:
    """Kill the program `kills` times at random moments, unless it ends before, then let it finish.

    Every third kill waits for a checkpoint being written, and comes at some moment of that.

    Returns:
        How often it was killed.
    """
    done = 0
    while done < kills:
        attempt = Attempt(options)
        if chance.random() < 1 / 3:
            attempt.wait_until(lambda: writing(options.folder, options.storage))
            time.sleep(chance.random() * 0.01)
        else:
            time.sleep(chance.random() * longest)
        if not attempt.kill():
            assert attempt.wait() == 0, attempt.output
            return done
        done += 1
    finish(options)
    return done


def writing(folder: Path, storage: str = "folder") -> bool:
    """Whether a checkpoint is being written."""
    if storage == "folder":
        return any((folder / "checkpoints").glob(".part_*"))
    files = storage_in(storage, folder).files("checkpoints")
    begun = {name.rpartition("/")[0].rpartition("/")[0] for name in files if name.count("/") == 3}
    return any(f"{step}/manifest.json" not in files for step in begun)


# What a run leaves behind ---------------------------------------------------------------------------------


def outcome(folder: Path) -> Any:
    """Return everything that must be the same in an interrupted run: final states, history, the lines of metrics."""
    return {
        **read_file(folder / OUTCOME),
        "metrics": metric_lines(folder),
        "average file": read_file(folder / "average.pt"),
    }


def differing(first: Any, second: Any, where: str = "") -> list[str]:
    """Return the places at which two trees differ, in a single bit of a tensor if need be."""
    if type(first) is not type(second):
        return [f"{where}: {type(first).__name__} and {type(second).__name__}"]
    if isinstance(first, dict):
        if list(first) != list(second):
            return [f"{where}: keys {list(first)} and {list(second)}"]
        return [place for key in first for place in differing(first[key], second[key], f"{where}.{key}")]
    if isinstance(first, (list, tuple)):
        if len(first) != len(second):
            return [f"{where}: {len(first)} and {len(second)} entries"]
        pairs = enumerate(zip(first, second, strict=True))
        return [place for number, pair in pairs for place in differing(*pair, f"{where}.{number}")]
    if isinstance(first, Tensor):
        same = first.dtype == second.dtype and first.shape == second.shape and bitwise_equal(first, second)
        return [] if same else [f"{where}: tensors differ"]
    return [] if first == second else [f"{where}: {first} and {second}"]


def bitwise_equal(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors of one type and shape hold the same bytes; a nan equals itself, 0 and -0 differ."""
    one, other = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second))
    return torch.equal(one, other)


def assert_same_outcome(folder: Path, uninterrupted: Path, *, began: Collection[int]) -> None:
    """Fail, listing the places, if the run in `folder` did not end as the uninterrupted one.

    Args:
        folder: The run that was started more than once.
        uninterrupted: The one that was not.
        began: The steps from which the last start may have gone on; it must have made all updates from there.
    """
    whole = outcome(uninterrupted)
    places = differing(whole, outcome(folder))
    assert not places, "\n".join(places)
    step, made = map(int, (folder / UPDATES).read_text().split())
    assert step in began, f"the last start went on from step {step}, and not from one of {began}"
    assert made == whole["steps"] - step, f"the last start made {made} updates from step {step}"
