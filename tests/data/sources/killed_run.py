"""A run on a source that kills itself at a step, to be started again: alone, or as one of several under torchrun."""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.data.sources.files import make_source, marks_of
from treadle import Trainer, TrainerCallback
from treadle.checkpoint import Policy, write_file

EPOCHS = 3
GLOBAL = 4


class Recorder(TrainerCallback):
    """Writes down where this process began and what it saw, and kills it in the middle of a step."""

    def __init__(self, folder: Path, kill_at: int) -> None:
        self._folder, self._kill_at = folder, kill_at
        self.numbers: list[int] = []

    def on_training_run_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self._write(trainer, "began", trainer.progress.step)

    def on_train_step_end(self, trainer: Trainer, *, batch: Any, **kwargs: Any) -> None:
        if (
            trainer.progress.step + 1 == self._kill_at
            and trainer.processes.rank == self._kill_at % trainer.processes.size
        ):
            os.kill(os.getpid(), signal.SIGKILL)
        self.numbers = marks_of(batch)

    def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self._write(trainer, "step", trainer.progress.step, *self.numbers)

    def _write(self, trainer: Trainer, *words: object) -> None:
        with (self._folder / f"seen_{trainer.processes.rank}.txt").open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")


class Output(NamedTuple):
    """What a model of text gives."""

    loss: Tensor


class Words(nn.Module):
    """Predicts the token after each token from it and its place in its document."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 8), nn.Embedding(16, 8)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(8, 50)

    def forward(self, input_ids: Tensor, labels: Tensor, position_ids: Tensor) -> Output:
        """Return the mean over rows, of each over its labels that count."""
        scores = self.head(self.drop(self.tokens(input_ids) + self.places(position_ids)))
        wanted = labels[:, 1:]
        losses = nn.functional.cross_entropy(scores[:, :-1].transpose(1, 2), wanted, reduction="none")
        return Output((losses.sum(dim=1) / (wanted >= 0).sum(dim=1).clamp(min=1)).mean())


class Windows(nn.Module):
    """Takes a window of tokens for numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 4))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return a number for each token."""
        scores: Tensor = self.layers(tokens.float())
        return scores


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error, of whole numbers too."""
    return nn.functional.mse_loss(outputs, targets.float())


def model_of(kind: str) -> nn.Module:
    """Return what a source of a kind is trained on."""
    if kind.startswith("packed"):
        return Words()
    return Windows() if kind == "tokens" else nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 1))


def train(folder: Path, kind: str, workers: int, kill_at: int) -> None:
    """Train to the end, or to the step at which the process is killed, from wherever the run is."""
    torch.manual_seed(0)
    model = model_of(kind)
    trainer = Trainer(
        model,
        None if kind.startswith("packed") else squares,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        callbacks=(Recorder(folder, kill_at),),
        run_dir=folder / "run",
        seed=7,
        checkpoints=Policy(keep_last=2, asynchronous=False),
    )
    trainer.train(
        make_source(kind, folder / "files"),
        num_epochs=EPOCHS,
        per_device_batch_size=GLOBAL // int(os.environ.get("WORLD_SIZE", "1")),
        train_dataloader_kwargs={"num_workers": workers},
        save_every="1 step",
        resume="auto",
    )
    if trainer.processes.is_main:
        write_file(folder / "outcome.safetensors", {"model": model.state_dict(), "steps": trainer.progress.step})


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind")
    parser.add_argument("workers", type=int)
    parser.add_argument("kill_at", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train(options.folder, options.kind, options.workers, options.kill_at)


if __name__ == "__main__":
    sys.exit(main())
