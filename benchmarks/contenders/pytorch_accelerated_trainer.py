"""pytorch-accelerated's trainer with its default callbacks."""

from operator import itemgetter
from typing import Any

from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import TrainerCallback
from pytorch_accelerated.trainer import DEFAULT_CALLBACKS

from benchmarks.execution.work import Clock
from benchmarks.job import LOSS_FUNC, Job

# The trainer builds its own loader and requires a batch sampler, so `batch_size=None` fails; lists of one
# ready batch, unpacked by the collate function, cost the same. Worker processes, its default, cost far more.
READY_BATCHES = {"batch_size": 1, "shuffle": False, "num_workers": 0, "pin_memory": False}


def train(job: Job) -> None:
    """Train one epoch, progress bar and printed metrics included."""
    trainer = Trainer(job.model, loss_func=LOSS_FUNC, optimizer=job.optimizer)
    trainer.train(job.batches, num_epochs=1, train_dataloader_kwargs=READY_BATCHES, collate_fn=itemgetter(0))


class EpochClock(TrainerCallback):
    """A clock around every epoch."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_epoch_start(self, trainer: Any, **keywords: Any) -> None:
        """Begin."""
        self.clock.begin()

    def on_train_epoch_end(self, trainer: Any, **keywords: Any) -> None:
        """End."""
        self.clock.end()


def train_clocked(job: Job, clock: Clock, *, epochs: int = 2) -> None:
    """Train some epochs in the same way, where accelerate puts the model."""
    callbacks = (*DEFAULT_CALLBACKS, EpochClock(clock))
    trainer = Trainer(job.model, loss_func=LOSS_FUNC, optimizer=job.optimizer, callbacks=callbacks)
    trainer.train(job.batches, num_epochs=epochs, train_dataloader_kwargs=READY_BATCHES, collate_fn=itemgetter(0))
