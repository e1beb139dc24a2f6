"""fp16 on several processes: one scale for all of them, and updates that all of them leave out together."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.parallel.programs.models import flat, per_device, samples, sgd
from tests.parallel.programs.scenarios import Program, Report
from treadle import Trainer
from treadle.precision import LossScaling

program = Program("half_precision")


class Uneven(Trainer):
    """A trainer whose loss is large on the last rank, and whose gradient overflows there at step 3."""

    factor = 1.0

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        last = self.processes.rank == self.processes.size - 1
        loss = output["loss"] * (self.factor if last else 1.0)
        if last and self.progress.step == 2:
            # The gradient of sqrt at 0 is infinite.
            loss = loss + torch.sqrt(next(iter(self.model.parameters())).sum() * 0)
        return {**output, "loss": loss}


def train(factor: float, **settings: Any) -> Report:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    trainer = Uneven(model, nn.CrossEntropyLoss(), sgd(model, 0.01), callbacks=(), seed=3, precision="fp16", **settings)
    trainer.factor = factor
    inputs, labels = samples(72).tensors
    data = torch.utils.data.TensorDataset(inputs.float(), labels)
    trainer.train(data, 1, per_device_batch_size=per_device(trainer), log_every=1)
    assert trainer.precision.scaler is not None
    return {
        "weights": flat(trainer.model),
        "scales": trainer.storage.series("loss_scale").values[:6],
        "skipped": trainer.storage.series("skipped_steps").values[:6],
    }


@program.scenario
def one_scale() -> Report:
    """The first loss is a million times as large on one rank."""
    return train(1e6)


@program.scenario
def one_flag() -> Report:
    """The third gradient overflows on one rank."""
    return train(1.0, loss_scaling=LossScaling(initial=64.0))


if __name__ == "__main__":
    program.run(Path(sys.argv[1]))
