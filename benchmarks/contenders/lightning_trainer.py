"""Lightning's trainer, stripped by `barebones=True` and as it comes."""

import torch
from lightning.pytorch import LightningModule, Trainer

from benchmarks.job import LOSS_FUNC, Batch, Job


class Classifier(LightningModule):
    """The job's model and optimizer; it logs nothing, for `self.log` is the user's to call."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.model = job.model
        self.job_optimizer = job.optimizer

    def training_step(self, batch: Batch) -> torch.Tensor:
        """Return the loss of one batch."""
        inputs, targets = batch
        loss: torch.Tensor = LOSS_FUNC(self.model(inputs), targets)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Hand over the job's optimizer."""
        return self.job_optimizer


def train_barebones(job: Job) -> None:
    """Train one epoch with everything off that Lightning offers to turn off for such a measurement."""
    Trainer(max_epochs=1, accelerator="cpu", devices=1, barebones=True).fit(Classifier(job), job.loader)


def train_by_default(job: Job) -> None:
    """Train one epoch with bar, logger and checkpoint as they come."""
    Trainer(max_epochs=1, accelerator="cpu", devices=1).fit(Classifier(job), job.loader)
