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


def mypy(folder: Path, *files: str) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), *files]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


def test_the_programs_of_the_first_pages_pass_a_strict_type_checker(tmp_path: Path) -> None:
    files = [path.name for path in programs(tmp_path).glob("*.py")]
    assert len(files) == 2
    assert mypy(tmp_path, *files).strip() == "Success: no issues found in 2 source files"


def test_a_type_checker_finds_a_word_that_an_argument_does_not_take(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    found = [line.partition(": error: ") for line in mypy(tmp_path, "wrong.py").splitlines() if "error" in line]
    assert [(place, what.split(" to ")[0]) for place, _, what in found[:-1]] == [
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
