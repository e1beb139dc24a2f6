"""Runs the programs beside this file in real processes, alone or with torchrun, and reads what they report."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.forking.process import Process
from tests.forking.starting import start

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 300
"""How long a launch may take before it counts as hung; an ordinary one takes five to twenty seconds."""
SHOWN = 6000
"""How many characters of what was printed a failing test shows; what a test looks for, it looks for in all of it."""
EXACT = 1e-12
"""How far float64 may be off where a sum was taken in another order."""
TOGETHER = {
    1: ("equality", "loops", "exchange", "weighted", "evaluation", "runs", "keeping"),
    2: (
        "equality",
        "loops",
        "exchange",
        "weighted",
        "evaluation",
        "runs",
        "stopping",
        "keeping",
        "half_precision",
        "own_strategy",
        "choosing",
    ),
    3: ("equality", "evaluation"),
}
"""The programs that share a launch, by the number of processes; a launch takes longer than what runs in it."""

STARTED = {("equality", 2)}
"""The launch that is one of processes which really are started, each with an order of sets of its own."""


class Results:
    """What the scenarios of a program reported, for each rank.

    Attributes:
        folder: Where the program wrote.
    """

    def __init__(self, launch: Path, program: str, ranks: int) -> None:
        self.folder = launch / program
        self._launch = launch
        self._ranks = ranks

    def __call__(self, scenario: str) -> list[dict[str, Any]]:
        """Return the report of every rank, in rank order; fail the test where a rank has none or an error."""
        return [self._read(scenario, rank) for rank in range(self._ranks)]

    def rank_zero(self, scenario: str) -> dict[str, Any]:
        """Return the report of the first rank."""
        return self(scenario)[0]

    def _read(self, scenario: str, rank: int) -> dict[str, Any]:
        path = self.folder / f"{scenario}.rank_{rank}.json"
        if not path.exists():
            ending = f"{self.printed(rank)[-SHOWN:]}\n{self.output[-SHOWN:]}"
            pytest.fail(f"rank {rank} never came to the end of {scenario!r}:\n{ending}", pytrace=False)
        report: dict[str, Any] = json.loads(path.read_text())
        if "error" in report:
            pytest.fail(f"{scenario!r} failed on rank {rank}:\n{report['error']}", pytrace=False)
        tensors = path.with_suffix(".safetensors")
        return report | (load_file(tensors) if tensors.exists() else {})

    def printed(self, rank: int) -> str:
        """All that one rank printed: its own lines, whole, whatever the others print meanwhile."""
        files = sorted((self._launch / "logs").glob(f"*/attempt_*/{rank}/std*.log"))
        return "".join(file.read_text() for file in files)

    @property
    def output(self) -> str:
        """All that was printed: by each rank in turn, and by the launcher, or the process that ran alone."""
        ranks = "".join(map(self.printed, range(self._ranks)))
        return ranks + (self._launch / "output.txt").read_text()

    @property
    def exit_code(self) -> int | None:
        """How the launch ended; None if it had to be killed."""
        code: int | None = json.loads((self._launch / "exit.json").read_text())
        return code


def assert_same_run(own: dict[str, Any], reference: dict[str, Any]) -> None:
    """Check that a run ended as the reference did: in float64, to the rounding of a differently ordered sum."""
    torch.testing.assert_close(own["weights"], reference["weights"], rtol=0, atol=EXACT)
    assert own["history"].keys() == reference["history"].keys()
    for name, values in reference["history"].items():
        assert own["history"][name] == pytest.approx(values, rel=EXACT, abs=EXACT), name
    assert own["logged"] == pytest.approx(reference["logged"], rel=EXACT, abs=EXACT)
    assert (own["steps"], own["samples"]) == (reference["steps"], reference["samples"])


def launch(shared: Path, program: str, *, processes: int) -> Results:
    """Return the results of a program on so many processes; it is run once per test session.

    Args:
        shared: A folder that all pytest workers see; the one that comes first runs the program, others wait.
        program: A module in `programs`.
        processes: One runs it as a plain script, more run it under torchrun.
    """
    together = TOGETHER.get(processes, ())
    names = together if program in together else (program,)
    folder = shared / f"{names[0]}_on_{processes}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "exit.json").exists():
            code = _run(folder, names, processes)
            (folder / "exit.json").write_text(json.dumps(code))
    return Results(folder, program, processes)


def _run(folder: Path, names: Sequence[str], processes: int) -> int | None:
    # A file for each rank: what several print into one is interleaved.
    files = ["--redirects=3", f"--log-dir={folder / 'logs'}"]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *files]
    module = "together" if len(names) > 1 else names[0]
    command = [*(launcher if processes > 1 else []), "-m", f"tests.parallel.programs.{module}", str(folder), *names]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"OMP_NUM_THREADS": "1"}
    with (folder / "output.txt").open("w") as output:
        running: Process | subprocess.Popen[bytes]
        if (names[0], processes) in STARTED:
            errors = subprocess.STDOUT
            running = subprocess.Popen(
                [sys.executable, *command], stdout=output, stderr=errors, cwd=ROOT, env=environment
            )
        else:
            running = start(*command, stdout=output, cwd=ROOT, env=environment, launches=processes > 1)
        try:
            return running.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            # Asked to go, the launcher takes its workers along; killed, it would leave them behind.
            running.terminate()
            running.wait()
            return None
