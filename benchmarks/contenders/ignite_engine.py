"""Ignite's engine with its ready-made supervised step, and no handler attached."""

from ignite.engine import create_supervised_trainer

from benchmarks.job import LOSS_FUNC, Job


def train(job: Job) -> None:
    """Train one epoch; the engine's default output, the loss as a number, is kept."""
    create_supervised_trainer(job.model, job.optimizer, LOSS_FUNC).run(job.loader, max_epochs=1)
