"""Commands as real processes: started, signalled, and compared by what they leave behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.forking.starting import start
from tests.interrupting import assert_same_bits, metric_lines
from treadle.checkpoint import CheckpointStore, Policy

LIMIT_SECONDS = 240
"""How long a command may take before it counts as hung."""


class Command:
    """A command that was started in a folder, in a session of its own.

    Args:
        folder: The folder.
        arguments: Its command line, behind `treadle`.
        output: The file in the folder that takes what it prints.
        variables: What its environment has besides.
    """

    def __init__(
        self, folder: Path, *arguments: str, output: str = "output.txt", variables: dict[str, str] | None = None
    ) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        self._output = (folder / output).open("w+")
        self._process = start(
            "-m",
            "treadle.cli",
            *arguments,
            cwd=folder,
            stdout=self._output,
            env=environment | {"OMP_NUM_THREADS": "1"} | (variables or {}),
            new_session=True,
            launches=True,
        )

    @property
    def output(self) -> str:
        """What it has printed."""
        return Path(self._output.name).read_text()

    def wait(self, status: int, limit: float = LIMIT_SECONDS) -> str:
        """Wait for its end, which must come with this status, negative for a signal; return what it printed."""
        try:
            found = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
            raise AssertionError(f"the command hung:\n{self.output}") from None
        self._output.close()
        assert found == status, self.output
        return self.output

    def signal_when(self, number: signal.Signals, condition: Callable[[], bool]) -> None:
        """Send it a signal, to itself alone, as soon as something is the case."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert self._process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.005)
        self._process.send_signal(number)


def has_saved(run: Path, step: int) -> Callable[[], bool]:
    """Return a condition: that a run has saved itself after so many iterations."""
    return (run / "checkpoints" / f"step_{step:08d}").exists


def telling_lines(run: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of a file of metrics that say something of the training."""
    return [line for line in metric_lines(run, name) if line.keys() - {"iteration"}]


def assert_same_end(run: Path, other: Path) -> None:
    """Compare where two runs ended: weights, optimizer, random numbers, places in the data, hooks and metrics.

    Args:
        run: The run that was interrupted.
        other: The one that was not.
    """
    stores = [CheckpointStore(folder / "checkpoints", Policy()) for folder in (run, other)]
    step = stores[0].newest_good()
    assert step is not None
    assert step == stores[1].newest_good()
    for rank in range(stores[0].manifest(step)["ranks"]):
        states = [store.read(step, rank=rank)["tracked"] for store in stores]
        for state in states:
            # The history holds clocks, and the length of the file of metrics depends on how they are written.
            state.pop("history", None)
            state.pop("metrics_file", None)
        assert_same_bits(*states)
    for name in ("metrics.jsonl", "metrics.json"):
        assert telling_lines(run, name) == telling_lines(other, name)
