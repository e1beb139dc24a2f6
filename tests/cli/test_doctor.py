"""`treadle doctor`: what is wrong with a program, in a shell."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Treadle
from tests.forking.starting import run_command
from treadle.tools.doctor import examine
from treadle.tools.doctor import processes as repeating

PROGRAMS = Path(__file__).parents[1] / "tools" / "doctor"


@pytest.mark.slow
def test_findings_are_told_with_their_lines_and_status_1_and_a_clean_program_is_told_so(
    treadle: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS.parents[1]))
    # The second command on a program tells in another form what the first one found.
    monkeypatch.setattr(repeating, "examine_in_processes", cache(repeating.examine_in_processes))
    # Sets have one order in all of these, and nothing in the programs depends on it.
    monkeypatch.setattr(repeating.subprocess, "run", run_command)
    fault = PROGRAMS / "faults" / "a_branch_on_a_value.py"
    told = treadle("doctor", str(fault), status=1).stdout
    line = next(number for number, line in enumerate(fault.read_text().splitlines(), 1) if "# planted" in line)
    assert f"a_branch_on_a_value.py:{line}: blocks_device: asks for the value of a tensor" in told
    assert "in 12 steps" in told.splitlines()[-1]
    lines = treadle("doctor", str(fault), "--json", status=1).stdout.splitlines()
    assert "blocks_device" in [json.loads(line)["kind"] for line in lines]
    clean = treadle("doctor", str(PROGRAMS / "clean" / "plain.py"), "--steps", "8")
    *notes, last = clean.stdout.splitlines()
    assert last == "nothing wrong was found in 8 steps"
    if not torch.cuda.is_available():
        assert " ".join(notes).startswith("no_gpu: trained on a CPU: head-room of memory")


@pytest.mark.slow
def test_changes_reach_the_config_and_arguments_the_program(
    project: Path, treadle: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not by the command, whose status tells whether something was found: on a busy machine data may be slow.
    assert examine(Path("configs/small.py"), 12, ["train.train_iter=7"]).steps == 7
    monkeypatch.setattr(repeating.subprocess, "run", run_command)
    monkeypatch.setenv("PYTHONPATH", f"{PROGRAMS.parents[1]}:{project}")
    assert "unknown key 'optim.lrr' in" in treadle("doctor", "configs/small.py", "optim.lrr=1", status=1).stderr
    Path("own.py").write_text("import sys\nsys.exit(f'called with {sys.argv[1:]}')\n")
    assert "called with ['a=1']" in treadle("doctor", "own.py", "a=1", status=1).stderr


def test_a_missing_program_is_one_message(treadle: Treadle) -> None:
    assert "there is no program none.py" in treadle("doctor", "none.py", status=1).stderr
