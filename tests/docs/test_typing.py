"""What a user's type checker says of the programs that the pages show first, and of words that an argument takes."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from tests.docs.test_docs import ROOT, programs_of
from treadle import Trainer
from treadle.execution.base import EXECUTIONS, ExecutionMode
from treadle.precision.formats import KINDS, PrecisionName

pytestmark = pytest.mark.slow
WRONG = """
import torch
from torch import nn
from treadle import Trainer
from treadle import TrainerPlaceholderValues as P

model = nn.Linear(2, 1)
Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters()), precision="bf32")
Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters()), on_nonfinite="ignore")
Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters()), execution="graphs")
(P.NUM_EPOCHS / 2).as_int() // 3
"""


def programs(folder: Path) -> Path:
    """Write what the README and the first page show as one program each."""
    for name in ("README.md", "docs/index.md"):
        shown = [block.text for block in programs_of((ROOT / name).read_text()) if "no-run" not in block.info]
        (folder / f"{Path(name).stem.lower()}_page.py").write_text("\n".join(shown) + "\n")
    return folder


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of these programs and of a wrong one, line by line."""
    folder = programs(tmp_path_factory.mktemp("programs"))
    (folder / "wrong.py").write_text(WRONG)
    if (ROOT / ".mypy_cache").is_dir():
        # What `make types` knows of torch and of the package need not be found out again, which takes a minute.
        shutil.copytree(ROOT / ".mypy_cache", folder / "cache")
    files = sorted(path.name for path in folder.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), *files]
    lines = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout.splitlines()
    assert "(checked 3 source files)" in lines[-1]
    return lines[:-1]


def test_the_programs_of_the_first_pages_pass_a_strict_type_checker(said: list[str]) -> None:
    assert [line for line in said if not line.startswith("wrong.py:")] == []


def test_a_type_checker_finds_a_word_that_an_argument_does_not_take(said: list[str]) -> None:
    found = [line.partition(": error: ") for line in said if "error" in line]
    assert [(place, what.split(" to ")[0]) for place, _, what in found] == [
        ("wrong.py:8", 'Argument "precision"'),
        ("wrong.py:9", 'Argument "on_nonfinite"'),
        ("wrong.py:10", 'Argument "execution"'),
    ]


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_the_programs_of_the_first_pages_pass_pyright(tmp_path: Path) -> None:
    command = ["pyright", "--pythonpath", sys.executable, *map(str, programs(tmp_path).glob("*.py"))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "0 errors" in done.stdout, done.stdout


def test_the_words_of_a_signature_are_those_that_are_checked() -> None:
    assert get_args(PrecisionName) == (*KINDS, "auto")
    assert get_args(ExecutionMode) == EXECUTIONS
    hints = get_type_hints(Trainer.__init__)
    assert PrecisionName in get_args(hints["precision"])
