"""Lightning's trainer, with its checkpoint callback and, if asked for, torchdata's loader."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch.utils.data import DataLoader

from benchmarks.resume.work import (
    BATCH_SIZE,
    DECAY,
    EPOCHS,
    LOSS_FUNC,
    SEED,
    NotPossibleError,
    Sample,
    Samples,
    Scenario,
    Weights,
    make_network,
    make_optimizer,
    make_schedule,
    weights_of,
)


class Classifier(LightningModule):
    """The network of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__()
        self.network, self.scenario = make_network(scenario), scenario

    def training_step(self, batch: Sample) -> torch.Tensor:
        """Return the loss of one batch."""
        inputs, labels = batch
        loss: torch.Tensor = LOSS_FUNC(self.network(inputs), labels)
        return loss

    def configure_optimizers(self) -> Any:
        """Return the optimizer, and the schedule by steps."""
        optimizer = make_optimizer(self.network)
        schedule = {"scheduler": make_schedule(optimizer, self.scenario), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def run(scenario: Scenario, folder: Path, resume: bool, *, stateful: bool = False) -> Weights:
    """Train, from the last checkpoint if asked to."""
    seed_everything(SEED, workers=True)
    cadence = {"every_n_epochs": 1} if scenario.by_epoch else {"every_n_train_steps": scenario.saved_step}
    saving = ModelCheckpoint(dirpath=folder, save_last=True, save_top_k=-1, **cadence)
    # At the end of training this callback puts the average into the place of the weights.
    averaging = [EMAWeightAveraging(decay=DECAY)] if scenario.ema else []
    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        callbacks=[saving, *averaging],
        accumulate_grad_batches=scenario.accumulation,
        precision="16-mixed" if scenario.fp16 else "32-true",
        default_root_dir=folder,
        logger=False,
    )
    if scenario.fp16 and trainer.precision != "16-mixed":
        raise NotPossibleError(f"takes {trainer.precision} instead on a CPU")
    module = Classifier(scenario)
    trainer.fit(module, make_loader(scenario, stateful), ckpt_path="last" if resume else None)
    return weights_of(module.network)


def make_loader(scenario: Scenario, stateful: bool) -> DataLoader[Sample]:
    """Return torch's loader, or the one of torchdata that knows its place."""
    kind: Any = DataLoader
    if stateful:
        from torchdata.stateful_dataloader import StatefulDataLoader

        kind = StatefulDataLoader
    loader: DataLoader[Sample] = kind(
        Samples(scenario), batch_size=BATCH_SIZE, shuffle=scenario.shuffle, num_workers=scenario.workers
    )
    return loader
