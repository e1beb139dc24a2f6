"""Starts the program as two processes under torchrun."""

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.crash.attempts import LIMIT_SECONDS
from tests.forking.starting import start

SHOWN = 6000
"""How many characters of what was printed a failure shows."""


class Group:
    """Two processes of the program, started by torchrun and started again whenever one of them dies.

    Args:
        folder: The folder of the run.
        arguments: What else the program is told.
        restarts: How often they may be started again.
    """

    def __init__(self, folder: Path, *arguments: str, restarts: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._limit = LIMIT_SECONDS * (1 + restarts)
        # A file for each rank: what several print into one is interleaved.
        files = ["--redirects=3", f"--log-dir={folder / 'logs'}"]
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}", *files]
        program = ["-m", "tests.crash.program", str(folder), "--workers=0", *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        with (folder / "output.txt").open("w") as output:
            self._running = start(
                "-m",
                *launcher,
                *program,
                stdout=output,
                env=environment | {"OMP_NUM_THREADS": "1"},
                new_session=True,
                launches=True,
            )

    def wait(self) -> int:
        """Wait for the end, and return the exit status of torchrun."""
        try:
            return self._running.wait(self._limit)
        except subprocess.TimeoutExpired:
            os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
            raise AssertionError(f"the processes hung:\n{self.printed[-SHOWN:]}") from None

    def wait_for_file(self, name: str) -> None:
        """Wait until the program has made a file in its folder."""
        while not (self._folder / name).exists():
            assert self._running.poll() is None, self.printed[-SHOWN:]
            time.sleep(0.01)

    def terminate(self) -> None:
        """Ask torchrun to end, as a scheduler does which wants the machine back."""
        self._running.terminate()

    @property
    def launcher_printed(self) -> str:
        """What torchrun printed itself."""
        return (self._folder / "output.txt").read_text()

    @property
    def printed(self) -> str:
        """All that was printed, in all starts: by each rank, and by torchrun."""
        ranks = sorted((self._folder / "logs").glob("*/attempt_*/*/std*.log"))
        return "".join(file.read_text() for file in ranks) + self.launcher_printed


def finish(group: Group) -> Group:
    """Wait for the end, which must be a good one."""
    assert group.wait() == 0, group.printed[-SHOWN:]
    return group
