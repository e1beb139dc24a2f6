"""The doctor finds the planted faults, points to their lines, and says nothing of programs without a fault."""

import warnings
from pathlib import Path

import pytest
import torch

from tests.forking.starting import run_command
from treadle.errors import ConfigError
from treadle.tools.doctor import Examination, examine
from treadle.tools.doctor.detectors.optimization import end_of
from treadle.tools.doctor.findings import Finding
from treadle.tools.doctor.processes import describe_failure, differences, examine_in_processes, from_json, to_json

HERE = Path(__file__).parent
FAULTS = sorted((HERE / "faults").glob("*.py"))
CLEAN = sorted((HERE / "clean").glob("*.py"))


def kind_of(program: Path) -> str:
    (line,) = [line for line in program.read_text().splitlines() if line.startswith("FAULT = ")]
    return line.split('"')[1]


APART = [program for program in FAULTS if kind_of(program) == "not_repeatable"]
"""Faults that show only in two processes."""
FORKED = ("noise_from_a_generator_nobody_seeds",)
"""Those of them that show in forked processes too, which have one order of sets and one state of torch's generator."""


def look(program: Path) -> Examination:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return examine(program)


def faults_in(examination: Examination) -> list[Finding]:
    """Return what was found but for slow data: that is a share of the time, and on a busy machine may be any."""
    return [finding for finding in examination.findings if finding.kind != "slow_data"]


@pytest.mark.parametrize("program", [one for one in FAULTS if one not in APART], ids=lambda path: path.stem)
def test_a_planted_fault_is_found(program: Path) -> None:
    found = [finding for finding in look(program).findings if finding.kind == kind_of(program)]
    assert found, "not found"
    planted = [number for number, line in enumerate(program.read_text().splitlines(), 1) if "# planted" in line]
    if planted and kind_of(program) == "blocks_device":
        assert [(Path(finding.file).name, finding.line) for finding in found] == [(program.name, planted[0])]


@pytest.mark.parametrize("program", CLEAN, ids=lambda path: path.stem)
def test_a_program_without_a_fault_is_left_in_peace(program: Path) -> None:
    first = look(program)
    assert faults_in(first) == []
    assert first.steps == 12
    assert differences(first, look(program)) == []


@pytest.mark.slow
@pytest.mark.parametrize("program", APART, ids=lambda path: path.stem)
def test_what_cannot_be_repeated_shows_in_several_processes(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if program.stem in FORKED:
        monkeypatch.setattr("treadle.tools.doctor.processes.subprocess.run", run_command)
    assert "not_repeatable" in [finding.kind for finding in examine_in_processes(program).findings]


def test_a_program_that_trains_nothing_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "idle.py"
    program.write_text("print('hello')\n")
    with pytest.raises(ConfigError, match=r"idle\.py neither trains when it is run, nor is it a config"):
        examine(program)
    with pytest.raises(ConfigError, match="there is no program"):
        examine(tmp_path / "none.py")


def test_a_program_that_fails_says_so(tmp_path: Path) -> None:
    program = tmp_path / "failing.py"
    clean = (HERE / "clean" / "plain.py").read_text()
    program.write_text(clean.replace("nn.CrossEntropyLoss()", "nn.MSELoss()"))
    (finding,) = [finding for finding in look(program).findings if finding.kind == "fails"]
    assert finding.message.startswith("RuntimeError: ")


def test_a_schedule_that_goes_up_and_down_again_ends_with_its_first_turn() -> None:
    # Each top is a little higher than the one before, as torch reckons them.
    assert end_of([0.01 * (1 + turn * 1e-13) * rate for turn in range(20) for rate in (1.0, 0.5, 0.0, 0.5)]) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nx = (\n", "SyntaxError: '(' was never closed ({program}, line 2)"),
        ("def fail():\n    raise ValueError('two\\nlines')\n\nfail()\n", "ValueError: two lines ({program}, line 2)"),
        (
            "import json\njson.loads('')\n",
            "JSONDecodeError: Expecting value: line 1 column 1 (char 0) ({program}, line 2)",
        ),
    ],
    ids=["syntax", "raised", "elsewhere"],
)
def test_a_program_that_fails_before_it_trains_is_told_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    program = tmp_path / "failing.py"
    program.write_text(text)
    with pytest.raises(Exception) as caught:
        examine(program)
    assert describe_failure(caught.value, program) == message.format(program=program)


def test_the_folder_of_a_run_is_not_touched(tmp_path: Path) -> None:
    program = tmp_path / "saving.py"
    clean = (HERE / "clean" / "plain.py").read_text()
    program.write_text(clean.replace("seed=0)", f"seed=0, run_dir={str(tmp_path / 'run')!r})"))
    assert faults_in(look(program)) == []
    assert not (tmp_path / "run").exists()


def test_a_tensor_that_cannot_say_what_computed_it_disturbs_nobody() -> None:
    base = torch.zeros(2, 2)
    with torch.no_grad():
        view = base.view(4)
    base.mul_(torch.ones(2, 2, requires_grad=True))
    with pytest.raises(RuntimeError, match="view"):
        _ = view.grad_fn
    assert faults_in(look(HERE / "clean" / "plain.py")) == []


def test_a_config_is_examined_too() -> None:
    assert faults_in(look(HERE.parents[2] / "examples" / "engine" / "rings.py")) == []


@pytest.mark.parametrize(
    ("rates", "end"),
    [
        ([1.0] * 10, 0),
        ([0.9**step for step in range(50)], None),
        ([1.0, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001], 5),
    ],
    ids=["constant", "falls for ever", "in steps"],
)
def test_the_end_of_a_schedule_is_where_it_is_lowest(rates: list[float], end: int | None) -> None:
    assert end_of(rates) == end


def test_an_examination_survives_its_file() -> None:
    found = look(HERE / "faults" / "a_head_that_nothing_uses.py")
    assert found.findings
    assert from_json(to_json(found)) == found
