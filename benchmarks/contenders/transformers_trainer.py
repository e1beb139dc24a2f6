"""The transformers Trainer with default arguments, save those that would make it do other work."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks.execution.fashion_task import EVALUATION_BATCH, Task
from benchmarks.execution.work import Clock
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


class EpochClock(TrainerCallback):
    """A clock around every epoch."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_epoch_begin(self, *arguments: Any, **keywords: Any) -> None:
        """Begin."""
        self.clock.begin()

    def on_epoch_end(self, *arguments: Any, **keywords: Any) -> None:
        """End."""
        self.clock.end()


def train_clocked(job: Job, clock: Clock, *, epochs: int = 2) -> None:
    """Train some epochs where the model is, with bar and log; no clipping and no schedule."""
    arguments = TrainingArguments(
        output_dir="transformers",
        num_train_epochs=epochs,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to="none",
        use_cpu=not next(job.model.parameters()).is_cuda,
    )
    trainer = ReadyBatchTrainer(job, arguments)
    trainer.add_callback(EpochClock(clock))
    trainer.train()


class NamedSamples(Dataset[NamedBatch]):
    """Images with their labels, one by one."""

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> NamedBatch:
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


class LossOutput(nn.Module):
    """A classifier that returns its loss with its scores, as the trainer asks for it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> NamedBatch:
        """Return both."""
        scores = self.model(inputs)
        return {"loss": LOSS_FUNC(scores, labels), "logits": scores}


class StopAt(TrainerCallback):
    """Ends training when the accuracy of an evaluation is high enough, and keeps all of them."""

    def __init__(self, target: float) -> None:
        self.target = target
        self.accuracies: list[float] = []

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **keywords: Any) -> None:
        """Look at the newest accuracy."""
        self.accuracies.append(metrics["eval_accuracy"])
        control.should_training_stop = self.accuracies[-1] >= self.target


def accuracy_metric(prediction: Any) -> dict[str, float]:
    """Return the share of samples whose highest score is that of their class."""
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


def train_to_accuracy(task: Task, workers: int) -> list[float]:
    """Train with bar and log, no clipping and no schedule; return the accuracy after each epoch."""
    arguments = TrainingArguments(
        output_dir="transformers",
        num_train_epochs=task.most_epochs,
        per_device_train_batch_size=task.batch_size,
        per_device_eval_batch_size=EVALUATION_BATCH,
        eval_strategy="epoch",
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to="none",
        dataloader_num_workers=workers,
        dataloader_persistent_workers=workers > 0,
        seed=task.seed,
        use_cpu=task.device.type != "cuda",
    )
    stop = StopAt(task.target)
    trainer = Trainer(
        LossOutput(task.model),
        arguments,
        train_dataset=NamedSamples(*task.train_data),
        eval_dataset=NamedSamples(*task.test_data),
        compute_metrics=accuracy_metric,
        optimizers=(task.optimizer, None),
        callbacks=[stop],
    )
    trainer.train()
    return stop.accuracies
