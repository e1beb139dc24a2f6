"""The loop that everybody could write: what the others are measured against."""

from benchmarks.job import LOSS_FUNC, Job


def train(job: Job) -> None:
    """Train one epoch with nothing around the step."""
    model, optimizer = job.model, job.optimizer
    model.train()
    for inputs, targets in job.loader:
        optimizer.zero_grad()
        loss = LOSS_FUNC(model(inputs), targets)
        loss.backward()
        optimizer.step()
