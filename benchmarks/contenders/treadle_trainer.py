"""Treadle's trainer, as it comes and without callbacks."""

from benchmarks.job import LOSS_FUNC, Job
from treadle import Trainer


def train_by_default(job: Job) -> None:
    """Train one epoch with the callbacks that a user gets without asking."""
    trainer = Trainer(job.model, loss_func=LOSS_FUNC, optimizer=job.optimizer)
    trainer.train(job.loader, num_epochs=1)


def train_without_callbacks(job: Job) -> None:
    """Train one epoch with the bare loop."""
    trainer = Trainer(job.model, loss_func=LOSS_FUNC, optimizer=job.optimizer, callbacks=())
    trainer.train(job.loader, num_epochs=1)
