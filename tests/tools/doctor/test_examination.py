"""The doctor finds the planted faults, points to their lines, and says nothing of programs without a fault."""

import re
import warnings
from pathlib import Path

import pytest
import torch

from tests.forking.starting import run_command
from treadle.errors import ConfigError
from treadle.tools.doctor import Examination, examine
from treadle.tools.doctor.detectors.optimization import decay_end
from treadle.tools.doctor.failures import describe
from treadle.tools.doctor.findings import EXPLAINS, Finding
from treadle.tools.doctor.processes import (
    describe_failure,
    differences,
    examine_in_processes,
    from_json,
    to_json,
    uses_hash_order,
)

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
    found = look(program).findings if kind_of(program) == "slow_data" else faults_in(look(program))
    # One cause, one finding: what follows from it is not told beside it.
    assert [finding.kind for finding in found] == [kind_of(program)]
    assert all(finding.message and finding.remedy for finding in found)
    planted = [number for number, line in enumerate(program.read_text().splitlines(), 1) if "# planted" in line]
    if planted and kind_of(program) in ("blocks_device", "wrong_mode"):
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
    program.write_text(clean.replace("model = Network()", "model = Network()\nmodel.last = nn.Linear(7, 2)"))
    (finding,) = faults_in(look(program))
    assert (finding.kind, finding.message) == (
        "fails",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x16 and 7x2)",
    )
    assert finding.remedy == "the layer was made for another number of features than it is given"
    # The last line of the user's own code: the layer is called by the network of the tests.
    assert Path(finding.file).name == "parts.py"


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("element 0 of tensors does not require grad and does not have a grad_fn", "the loss was computed without a"),
        ("Trying to backward through the graph a second time", "something of an earlier step is still part"),
        ("expected scalar type Long but found Float", "the loss wants classes: labels.long()"),
        ("Found dtype Double but expected Float", "give all of them one dtype"),
        ("one of the variables has been modified by an inplace operation", "write the line without the in-place"),
        ("index out of range in self", "a number is not below num_embeddings"),
        ("Expected more than 1 value per channel when training", "batch norm needs more than one sample"),
        ("CUDA out of memory. Tried to allocate 2 GiB", "use smaller batches"),
        ("the moon is in the way", "run the program by itself to see the whole error"),
    ],
)
def test_an_error_that_everybody_meets_comes_with_what_to_do(text: str, remedy: str) -> None:
    assert describe(RuntimeError(text)).remedy.startswith(remedy)


def blocks_that_train(page: Path) -> list[str]:
    """Return the programs of a page."""
    return [
        block for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "trainer.train(" in block
    ]


ROOT = HERE.parents[2]
EXAMPLES = ("custom_loop", "digits", "finetune_frozen", "gan", "token_loss", "engine/train_net")
BUILT_UP = ("large-text", "transformers")
"""Pages whose programs build on one another, and on files that are made between them: tests/docs runs them in order."""
RECIPES = sorted(page for page in (ROOT / "docs" / "recipes").glob("*.md") if page.stem not in BUILT_UP)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_left_in_peace(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert faults_in(look(ROOT / "examples" / f"{name}.py")) == []


@pytest.mark.slow
@pytest.mark.parametrize("page", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_left_in_peace(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks_that_train(page):
        program = tmp_path / "recipe.py"
        program.write_text(block)
        assert faults_in(look(program)) == []


def test_every_recipe_is_examined() -> None:
    assert len(RECIPES) >= 6
    assert all(blocks_that_train(page) for page in RECIPES)


def test_what_explains_and_what_is_explained_are_kinds_of_findings() -> None:
    told = (ROOT / "docs" / "doctor.md").read_text()
    kinds = set(re.findall(r"^\| `(\w+)` \|", told, re.MULTILINE))
    assert {*EXPLAINS, *(effect for effects in EXPLAINS.values() for effect in effects)} <= kinds
    assert {kind_of(program) for program in FAULTS} <= kinds


def test_a_config_with_relative_imports_is_no_program(tmp_path: Path) -> None:
    program = tmp_path / "small.py"
    program.write_text("from .large import model\n")
    with pytest.raises(ConfigError, match=r"small\.py neither trains when it is run, nor is it a config"):
        examine(program)


def test_a_program_is_known_to_have_sets_by_its_text(tmp_path: Path) -> None:
    texts = {
        "x = set(words)": True,
        "x = {word for word in words}": True,
        "x = {1, 2}": True,
        "x = first.keys() - second.keys()": True,
        "x = hash(word)": True,
        "x = {word: 1 for word in words}": False,
        "x = first.keys()": False,
        "x = (": False,
    }
    for text, expected in texts.items():
        (tmp_path / "program.py").write_text(text)
        assert uses_hash_order(str(tmp_path / "program.py")) is expected, text
    assert not uses_hash_order(str(tmp_path / "none.py"))


def test_a_schedule_that_goes_up_and_down_again_ends_with_its_first_turn() -> None:
    # Each top is a little higher than the one before, as torch reckons them.
    assert decay_end([0.01 * (1 + turn * 1e-13) * rate for turn in range(20) for rate in (1.0, 0.5, 0.0, 0.5)]) == 2


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
    assert decay_end(rates) == end


def test_an_examination_survives_its_file() -> None:
    found = look(HERE / "faults" / "a_head_that_nothing_uses.py")
    assert found.findings
    assert from_json(to_json(found)) == found
