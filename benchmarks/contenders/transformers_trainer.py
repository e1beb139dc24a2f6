"""The transformers Trainer with default arguments, save those that would make it do other work."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainingArguments

from benchmarks.job import LOSS_FUNC, Batch, Job

NamedBatch = dict[str, torch.Tensor]


class NamedBatches(Dataset[NamedBatch]):
    """The ready batches as dicts; pairs work too, but the trainer's `"labels" in pair` costs 90 µs a step."""

    def __init__(self, pairs: list[Batch]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> NamedBatch:
        inputs, targets = self.pairs[index]
        return {"inputs": inputs, "labels": targets}


class ReadyBatchTrainer(Trainer):
    """Takes ready batches and a plain model, by the two methods that are meant to be overridden."""

    def __init__(self, job: Job, arguments: TrainingArguments) -> None:
        super().__init__(job.model, arguments, optimizers=(job.optimizer, None))
        self.ready_loader = DataLoader(NamedBatches(job.batches), batch_size=None, shuffle=False)

    def get_train_dataloader(self) -> DataLoader[NamedBatch]:
        """Return the loader unprepared, which is the cheaper way."""
        return self.ready_loader

    def compute_loss(self, model: nn.Module, inputs: NamedBatch, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """Return the loss of one batch."""
        loss: torch.Tensor = LOSS_FUNC(model(inputs["inputs"]), inputs["labels"])
        return loss


def train(job: Job) -> None:
    """Train one epoch with bar and log; no clipping and no schedule, for the others have none."""
    arguments = TrainingArguments(
        output_dir="transformers",
        num_train_epochs=1,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    ReadyBatchTrainer(job, arguments).train()
