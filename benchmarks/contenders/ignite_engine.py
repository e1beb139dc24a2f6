"""Ignite's engine with its ready-made supervised step, and no handler attached."""

from ignite.engine import Events, create_supervised_trainer

from benchmarks.execution.work import Clock
from benchmarks.job import LOSS_FUNC, Job


def train(job: Job) -> None:
    """Train one epoch; the engine's default output, the loss as a number, is kept."""
    create_supervised_trainer(job.model, job.optimizer, LOSS_FUNC).run(job.loader, max_epochs=1)


def train_clocked(job: Job, clock: Clock, *, epochs: int = 2) -> None:
    """Train some epochs in the same way, where the model is."""
    device = next(job.model.parameters()).device
    engine = create_supervised_trainer(job.model, job.optimizer, LOSS_FUNC, device=device)
    engine.add_event_handler(Events.EPOCH_STARTED, clock.begin)
    engine.add_event_handler(Events.EPOCH_COMPLETED, clock.end)
    engine.run(job.loader, max_epochs=epochs)
