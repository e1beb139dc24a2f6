"""Runs that are far into an epoch, made without having trained that far."""

import io
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from treadle import Trainer, TrainerCallback

LOG_EVERY = 50


@dataclass(frozen=True)
class Place:
    """Data to be deep in: how many samples an epoch has, how many a batch, and who fetches them."""

    samples: int
    batch: int
    workers: int = 0

    @property
    def name(self) -> str:
        """What to call it in a table."""
        fetched = f"{self.workers} workers" if self.workers else "no workers"
        return f"{self.samples / 1e6:g} M samples, batch {self.batch}, {fetched}"


RESUMED = (Place(2_100_000, 2), Place(40_000_000, 32), Place(40_000_000, 32, workers=2))
"""In the first, drawing the permutation hides the least."""


class Lazy(Dataset[tuple[Tensor, Tensor]]):
    """Samples made when they are asked for, so that there may be any number of them."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((16,), index / self._count), torch.rand(1)


class MovedTo(TrainerCallback):
    """Puts a run that starts just before a step of its first epoch, with the records it would have by then."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Move the run on, and its data with it."""
        before = self._step - 1
        for logged in range(LOG_EVERY, self._step, LOG_EVERY):
            trainer.storage.put_scalar("train_loss", 0.5, step=logged)
        trainer.storage.flush()
        progress = trainer.progress
        progress.step = progress.epoch_step = progress.visit_step = before
        stream = trainer.streams["train"]
        stream.begin(0, before)


class ReachedError(Exception):
    """Ends a run that has been measured; nothing is saved on the way out."""


class FirstUpdate(TrainerCallback):
    """Takes the time of the first update and ends the run there."""

    def __init__(self) -> None:
        self.ended_at = 0.0
        self.step = 0

    def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Note when and at which step it ended."""
        self.ended_at, self.step = perf_counter(), trainer.progress.step
        raise ReachedError


def _trainer(folder: Path, callback: TrainerCallback) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Trainer(model, nn.MSELoss(), optimizer, callbacks=(callback,), run_dir=folder, seed=1, device="cpu")


def _train(trainer: Trainer, place: Place, limit: int) -> None:
    with redirect_stdout(io.StringIO()):
        trainer.train(
            Lazy(place.samples),
            max_steps=limit,
            per_device_batch_size=place.batch,
            train_dataloader_kwargs={"num_workers": place.workers},
            log_every=LOG_EVERY,
            resume="auto",
        )


def prepare_run(folder: Path, place: Place, step: int) -> None:
    """Make a run that was saved at `step` of its first epoch."""
    _train(_trainer(folder, MovedTo(step)), place, step)


def measure_resume(folder: Path, place: Place, step: int) -> float:
    """Return the seconds from the call of `train` to the end of the first update after `step`."""
    first = FirstUpdate()
    trainer = _trainer(folder, first)
    began = perf_counter()
    with suppress(ReachedError):
        _train(trainer, place, step + 100)
    if first.step != step + 1:
        raise RuntimeError(f"the run in {folder} went on to step {first.step} instead of {step + 1}")
    return first.ended_at - began
