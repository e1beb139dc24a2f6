"""What an examination costs is counted, not timed: processes, and what is loaded in them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forking.starting import run_command
from treadle.tools.doctor import processes
from treadle.tools.doctor.processes import examine_in_processes

PLAIN = Path(__file__).parent / "clean" / "plain.py"


def test_the_command_that_waits_for_others_loads_no_torch() -> None:
    code = (
        "import sys, treadle.cli.doctor, treadle.tools.doctor.processes as processes, treadle.tools.doctor.findings;"
        "assert not {'torch', 'numpy', 'treadle.trainer'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not forked")
@pytest.mark.parametrize(("line", "count"), [("", 1), ("words = {'warm', 'cold'}\n", 3)], ids=["plain", "with a set"])
def test_one_process_is_started_unless_the_program_has_sets(
    line: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    def run(command: Any, **options: Any) -> Any:
        started.append(command)
        return run_command(command, **options)

    monkeypatch.setattr(processes.subprocess, "run", run)
    monkeypatch.setenv("PYTHONPATH", str(PLAIN.parents[4]))
    program = tmp_path / "program.py"
    program.write_text(line + PLAIN.read_text())
    found = examine_in_processes(program)
    assert [finding for finding in found.findings if finding.kind != "slow_data"] == []
    assert len(started) == count
