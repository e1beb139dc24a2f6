"""Lightning's trainer, stripped by `barebones=True` and as it comes."""

from typing import Any

import torch

from benchmarks.execution.fashion_task import Task
from benchmarks.execution.graphs import workspaces_kept
from benchmarks.execution.work import Clock
from benchmarks.job import LOSS_FUNC, Batch, Job

try:
    from lightning.pytorch import LightningModule, Trainer
except ModuleNotFoundError:
    # The same code is also published by itself, under this name.
    from pytorch_lightning import LightningModule, Trainer


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


class ClockedClassifier(Classifier):
    """The same, with a clock around every epoch."""

    def __init__(self, job: Job, clock: Clock) -> None:
        super().__init__(job)
        self.clock = clock

    def on_train_epoch_start(self) -> None:
        """Begin."""
        self.clock.begin()

    def on_train_epoch_end(self) -> None:
        """End."""
        self.clock.end()


def train_clocked(job: Job, clock: Clock, *, barebones: bool = False, epochs: int = 2) -> None:
    """Train some epochs where the model is, with everything as it comes or stripped of all that can be turned off."""
    options: dict[str, Any] = {"barebones": True} if barebones else {}
    kind = "gpu" if next(job.model.parameters()).is_cuda else "cpu"
    trainer = Trainer(max_epochs=epochs, accelerator=kind, devices=1, **options)
    # Others in this process replay graphs that they captured before.
    with workspaces_kept():
        trainer.fit(ClockedClassifier(job, clock), job.loader)


class TaskModule(LightningModule):
    """The model of a task; it asks the trainer to stop when the target is reached."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model, self.task_optimizer, self.target = task.model, task.optimizer, task.target
        self.accuracies: list[float] = []
        self.right: list[torch.Tensor] = []
        self.count = 0

    def training_step(self, batch: Batch) -> torch.Tensor:
        """Return the loss of one batch."""
        inputs, targets = batch
        loss: torch.Tensor = LOSS_FUNC(self.model(inputs), targets)
        return loss

    def validation_step(self, batch: Batch) -> None:
        """Count what is right in one batch."""
        inputs, targets = batch
        self.right.append((self.model(inputs).argmax(1) == targets).sum())
        self.count += len(targets)

    def on_validation_epoch_end(self) -> None:
        """Look at the accuracy; the few batches before training, which only try the code, do not count."""
        if not self.trainer.sanity_checking:
            self.accuracies.append(torch.stack(self.right).sum().item() / self.count)
            self.trainer.should_stop = self.accuracies[-1] >= self.target
        self.right, self.count = [], 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Hand over the task's optimizer."""
        return self.task_optimizer


def train_to_accuracy(task: Task, workers: int) -> list[float]:
    """Train with everything as it comes; return the accuracy after each epoch."""
    module = TaskModule(task)
    kind = "gpu" if task.device.type == "cuda" else "cpu"
    trainer = Trainer(max_epochs=task.most_epochs, accelerator=kind, devices=1)
    with workspaces_kept():
        trainer.fit(module, task.train_loader(workers), task.test_loader())
    return module.accuracies
