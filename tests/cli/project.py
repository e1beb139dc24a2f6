"""A small project in a folder, as a user has one: his own classes, configs that name them, and runs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.logs import forget_logs
from treadle.cli import app

PARTS = '''
"""Classes that configs name."""

import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from treadle.engine import DefaultTrainer, hooks


class Points(Dataset):
    """Points in the plane, labelled by the half they lie in; each takes a while to fetch."""

    def __init__(self, count, seed, pause=0.0):
        self.points = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
        self.labels = (self.points.sum(dim=1) > 0).long()
        self.pause = pause

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        time.sleep(self.pause)
        return {"points": self.points[index], "labels": self.labels[index]}


class Unlucky(Points):
    """Data of which the second process dies at the first start, while the first process waits for something."""

    def __init__(self, count, seed):
        super().__init__(count, seed)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)


class Network(nn.Module):
    """Losses in training, scores in evaluation."""

    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, 2))

    def forward(self, points, labels):
        scores = self.layers(points)
        if not self.training:
            return {"prediction_scores": scores}
        return {"half_loss": nn.functional.cross_entropy(scores, labels)}


class Faulty(Network):
    """A network with a bug."""

    def __init__(self, width, dropout=0.0):
        super().__init__(width, dropout)
        self.layers = nn.Linear(3, width)


class Unbuildable(Network):
    """A network whose bug shows when it is built."""

    def __init__(self, width, dropout=0.0):
        self.layers = nn.Linear(2, width)


class Greeting(DefaultTrainer):
    """A trainer of your own, with an argument of its own."""

    def __init__(self, cfg, greeting="hello"):
        super().__init__(cfg)
        Path("greeting.txt").write_text(greeting)


class Mortal(DefaultTrainer):
    """A trainer that waits for a signal where a file says so, and of which a second process is killed, once."""

    def build_hooks(self):
        return [*super().build_hooks(), *(hooks.CallbackHook(after_step=act) for act in (wait_for_signal, die_once))]


def wait_for_signal(trainer):
    wish = Path(f"wait_at_{trainer.iter}")
    if os.environ.get("RANK", "0") == "0" and wish.exists():
        wish.rename(f"waits_at_{trainer.iter}")
        while not trainer.core.this_run.stop.is_asked_to_leave():
            time.sleep(0.005)


def die_once(trainer):
    mark = Path(trainer.cfg.train.output_dir) / "died"
    if trainer.iter == 9 and os.environ.get("RANK") == "1" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
'''

CONFIG = '''
"""A small run, with an interpolation, dropout, warm-up, evaluation and checkpoints."""

import torch

from mine.parts import Network, Points
from treadle.config import LazyCall as L
from treadle.config import get_config

width = 8
model = L(Network)(width="${width}", dropout=0.3)
optim = L(torch.optim.AdamW)(lr=0.05)
dataloader = {"train": L(Points)(count=64, seed=0), "test": {"held_out": L(Points)(count=32, seed=1)}}
train = get_config("common/train.py").train
train.update(
    train_iter=12,
    train_micro_batch_size=8,
    test_micro_batch_size=16,
    warmup_ratio=0.25,
    log_period=4,
    checkpointer={"period": 4},
    evaluation={"eval_period": 4},
    dist={"device_type": "cpu"},
)
'''


def make_project(folder: Path) -> Path:
    """Write the files of the project into a folder, and return it."""
    (folder / "mine").mkdir(parents=True)
    (folder / "configs").mkdir()
    (folder / "mine" / "parts.py").write_text(PARTS)
    (folder / "configs" / "small.py").write_text(CONFIG)
    return folder


@contextmanager
def inside(folder: Path) -> Iterator[Path]:
    """Make the project in a folder and have it for the working folder; nothing of it outlives the block."""
    make_project(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [str(folder), *sys.path])
        patch.setenv("COLUMNS", "80")
        yield folder
    forget_project()


def treadle(*arguments: str, status: int = 0) -> Any:
    """Run a command in this process; it must end with the status that is expected."""
    result = CliRunner().invoke(app, arguments, prog_name="treadle")
    assert result.exit_code == status, result.output
    return result


def forget_project() -> None:
    """Forget the modules of a project, and what its runs logged to."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]
    forget_logs()
