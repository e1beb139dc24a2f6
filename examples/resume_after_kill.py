"""Kills a training process with SIGKILL, starts it again, and shows that it ends as if nothing had happened.

The program starts itself three times: once to train without a break, once to be killed, once to go on.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from treadle import Trainer, TrainerCallback
from treadle.checkpoint import read_file


class NoisyPoints(Dataset[Any]):
    """Points with noise that is drawn anew each time one is fetched."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        point = torch.tensor([index % 16, index // 16]) / 16
        return point + 0.1 * torch.randn(2), point.sum()[None]


class Slow(TrainerCallback):
    """Makes a step long enough for somebody to come and kill it."""

    def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Wait."""
        time.sleep(0.005)


def train(folder: Path, epochs: int) -> None:
    """Train, or go on training, in `folder`; save the weights beside it at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=[Slow], seed=0, run_dir=folder)
    trainer.train(NoisyPoints(), num_epochs=epochs, per_device_batch_size=16, save_every="7 steps", resume="auto")
    trainer.save_checkpoint(folder.with_suffix(".weights"))


def start(folder: Path, epochs: int) -> subprocess.Popen[bytes]:
    """Start the training in a process of its own."""
    return subprocess.Popen([sys.executable, __file__, "--train", str(folder), "--epochs", str(epochs)])


def main() -> None:
    """Train once without a break and once with one, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--train", type=Path, help="what the program tells itself when it starts itself")
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train, arguments.epochs)
        return
    with tempfile.TemporaryDirectory() as temporary:
        whole, broken = Path(temporary, "whole"), Path(temporary, "broken")
        assert start(whole, arguments.epochs).wait() == 0
        process = start(broken, arguments.epochs)
        while process.poll() is None and not (broken / "checkpoints" / "last").exists():
            time.sleep(0.005)
        process.kill()
        print(f"killed: exit status {process.wait()}")
        assert start(broken, arguments.epochs).wait() == 0
        one, other = (read_file(folder.with_suffix(".weights"))["model_state_dict"] for folder in (whole, broken))
        print(f"weights equal, bit for bit: {all(torch.equal(one[name], other[name]) for name in one)}")


if __name__ == "__main__":
    main()
