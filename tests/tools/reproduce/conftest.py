"""A program in a folder, as a user has one, and a run that it made."""

import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from layers_of_mine import make_model
from treadle import Trainer


class Rows(Dataset):
    def __init__(self, path):
        self.path = path
        self.rows = [tuple(map(float, line.split(","))) for line in Path(path).read_text().splitlines()]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        *inputs, target = self.rows[index]
        return torch.tensor(inputs), torch.tensor([target])


if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[1]))
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=(), seed=0, run_dir="runs/first", device="cpu")
    data = Rows("rows.csv")
    trainer.train(data, num_epochs=3, eval_dataset=data, log_every=2, train_dataloader_kwargs={"num_workers": 0})
"""

LAYERS = """
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
"""


@pytest.fixture(autouse=True)
def never_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has programs compiled anew: one changed to the same length in the same second Python takes for the old one."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a run of nine steps, with a checkpoint every three, in the working folder of its program."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "layers_of_mine.py").write_text(LAYERS)
    (tmp_path / "rows.csv").write_text("".join(f"{place / 7},{place % 5},{place % 3}\n" for place in range(24)))
    start(tmp_path / "train.py", "3")
    yield Path("runs/first")
    sys.modules.pop("layers_of_mine", None)


def start(program: Path, *arguments: str) -> None:
    """Run a program as `python PROGRAM ARGUMENTS` does, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(program), *arguments])
        patch.setattr(sys, "path", [str(program.parent), *sys.path])
        runpy.run_path(str(program), run_name="__main__")
    sys.modules.pop("layers_of_mine", None)


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    """Change what a JSON file holds."""
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with what is in it."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
