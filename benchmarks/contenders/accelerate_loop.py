"""The hand-written loop over what `Accelerator.prepare` returns."""

from accelerate import Accelerator

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
