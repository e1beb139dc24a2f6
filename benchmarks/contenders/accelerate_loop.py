"""The hand-written loop over what `Accelerator.prepare` returns."""

from accelerate import Accelerator

from benchmarks.execution.work import Clock
from benchmarks.job import LOSS_FUNC, Job


def train(job: Job) -> None:
    """Train one epoch as accelerate's guide says to: prepare, then `accelerator.backward`."""
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(job.model, job.optimizer, job.loader)
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = LOSS_FUNC(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()


def train_clocked(job: Job, clock: Clock, *, epochs: int = 2) -> None:
    """Train some epochs in the same way, where the model is."""
    accelerator = Accelerator(cpu=not next(job.model.parameters()).is_cuda)
    model, optimizer, loader = accelerator.prepare(job.model, job.optimizer, job.loader)
    model.train()
    for _ in range(epochs):
        clock.begin()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = LOSS_FUNC(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
        clock.end()
