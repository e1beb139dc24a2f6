"""The transformers Trainer."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainingArguments, set_seed

from benchmarks.resume.work import (
    BATCH_SIZE,
    EPOCHS,
    LOSS_FUNC,
    SEED,
    NotPossibleError,
    Samples,
    Scenario,
    Weights,
    make_network,
    make_optimizer,
    make_schedule,
    weights_of,
)

NamedSample = dict[str, torch.Tensor]


class NamedSamples(Dataset[NamedSample]):
    """The samples as dicts, which is how the trainer wants them."""

    def __init__(self, scenario: Scenario) -> None:
        self.samples = Samples(scenario)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> NamedSample:
        inputs, labels = self.samples[place]
        return {"inputs": inputs, "labels": labels}


class PlainTrainer(Trainer):
    """Takes a plain network, and data in order, by the methods that are meant to be overridden."""

    in_order = False

    def compute_loss(self, model: nn.Module, inputs: NamedSample, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """Return the loss of one batch."""
        loss: torch.Tensor = LOSS_FUNC(model(inputs["inputs"]), inputs["labels"])
        # The trainer divides by the micro-batches of a window where a loss is not told how many items there are.
        return loss

    def _get_train_sampler(self, *arguments: Any) -> Any:
        return SequentialSampler(self.train_dataset) if self.in_order else super()._get_train_sampler(*arguments)


def run(scenario: Scenario, folder: Path, resume: bool) -> Weights:
    """Train, from the last checkpoint if asked to."""
    if scenario.ema:
        raise NotPossibleError("has no moving average")
    set_seed(SEED)
    network = make_network(scenario)
    optimizer = make_optimizer(network)
    trainer = PlainTrainer(
        network,
        arguments_of(scenario, folder),
        train_dataset=NamedSamples(scenario),
        optimizers=(optimizer, make_schedule(optimizer, scenario)),
    )
    if scenario.fp16 and trainer.accelerator.scaler is None:
        raise NotPossibleError("stays in fp32 on a CPU, without a word")
    trainer.in_order = not scenario.shuffle
    trainer.train(resume_from_checkpoint=resume)
    return weights_of(network)


def arguments_of(scenario: Scenario, folder: Path) -> TrainingArguments:
    """Return the settings of a scenario."""
    cadence = {"save_strategy": "epoch"} if scenario.by_epoch else {"save_steps": scenario.saved_step}
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        gradient_accumulation_steps=scenario.accumulation,
        dataloader_num_workers=scenario.workers,
        max_grad_norm=0.0,
        report_to="none",
        use_cpu=True,
        seed=SEED,
        fp16=scenario.fp16,
        remove_unused_columns=False,
        **cadence,
    )
