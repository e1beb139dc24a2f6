"""Runs the programs beside this file in real processes, alone or with torchrun, and reads what they report."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 150
"""How long a launch may take before it counts as hung; an ordinary one takes five to ten seconds."""
EXACT = 1e-12


class Results:
    """What one scenario of a program reported, for each rank."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder = folder
        self._ranks = ranks

    def __call__(self, scenario: str) -> list[dict[str, Any]]:
        """Return the report of every rank, in rank order; fail the test where a rank has none or an error."""
        return [self._read(scenario, rank) for rank in range(self._ranks)]

    def rank_zero(self, scenario: str) -> dict[str, Any]:
        """Return the report of the first rank."""
        return self(scenario)[0]

    @property
    def folder(self) -> Path:
        """Where the program wrote."""
        return self._folder

    def _read(self, scenario: str, rank: int) -> dict[str, Any]:
        path = self._folder / f"{scenario}.rank_{rank}.json"
        if not path.exists():
            pytest.fail(f"rank {rank} never came to the end of {scenario!r}:\n{self.output}", pytrace=False)
        report: dict[str, Any] = json.loads(path.read_text())
        if "error" in report:
            pytest.fail(f"{scenario!r} failed on rank {rank}:\n{report['error']}", pytrace=False)
        tensors = path.with_suffix(".safetensors")
        return report | (load_file(tensors) if tensors.exists() else {})

    @property
    def output(self) -> str:
        """What the processes printed, both streams together; the last part of it if it is long."""
        return (self._folder / "output.txt").read_text()[-6000:]

    @property
    def exit_code(self) -> int | None:
        """How the launch ended; None if it had to be killed."""
        code: int | None = json.loads((self._folder / "exit.json").read_text())
        return code


def assert_same_run(own: dict[str, Any], reference: dict[str, Any]) -> None:
    """Check that a run ended as the reference did: in float64, to the rounding of a differently ordered sum."""
    torch.testing.assert_close(own["weights"], reference["weights"], rtol=0, atol=EXACT)
    assert own["history"].keys() == reference["history"].keys()
    for name, values in reference["history"].items():
        assert own["history"][name] == pytest.approx(values, rel=EXACT, abs=EXACT), name
    assert own["logged"] == pytest.approx(reference["logged"], rel=EXACT, abs=EXACT)
    assert (own["steps"], own["samples"]) == (reference["steps"], reference["samples"])


def launch(shared: Path, program: str, *, processes: int, scenarios: str = "") -> Results:
    """Run a program on so many processes, once per test session, and return its results.

    Args:
        shared: A folder that all pytest workers see; the one that comes first runs the program, others wait.
        program: A module in `programs`.
        processes: One runs the program as a plain script, more run it under torchrun.
        scenarios: Only the scenarios whose names begin so; all by default, those that stand alone excepted.
    """
    folder = shared / "-".join(filter(None, (program, str(processes), scenarios)))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "exit.json").exists():
            code = _run(folder, program, processes, scenarios)
            (folder / "exit.json").write_text(json.dumps(code))
    return Results(folder, processes)


def _run(folder: Path, program: str, processes: int, scenarios: str) -> int | None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    launcher = torchrun if processes > 1 else []
    command = [sys.executable, *launcher, "-m", f"tests.parallel.programs.{program}", str(folder)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    with (folder / "output.txt").open("w") as output:
        running = subprocess.Popen(
            [*command, *([scenarios] if scenarios else [])],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment | {"OMP_NUM_THREADS": "1"},
        )
        try:
            return running.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            # Asked to go, the launcher takes its workers along; killed, it would leave them behind.
            running.terminate()
            running.wait()
            return None
