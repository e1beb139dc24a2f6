"""fp16 on several processes: one scale for all of them, and updates that all of them leave out together."""

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.parallel.programs.models import flat, per_device, samples, sgd
from tests.parallel.programs.scenarios import Program, Report
from treadle import Trainer
from treadle.checkpoint import read_file
from treadle.parallel import Plan
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


def network() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def by_hand(model: nn.Module, steps: int) -> None:
    """Train on one process in fp16, as a loop written by hand does, on gradients that need no scale."""
    inputs, labels = samples(72).tensors
    optimizer = sgd(model)
    for begin in range(0, 12 * steps, 12):
        with torch.autocast("cpu", torch.float16):
            outputs = model(inputs[begin : begin + 12].float())
        nn.functional.cross_entropy(outputs.float(), labels[begin : begin + 12]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def under(plan: Any, **settings: Any) -> Trainer:
    model = network()
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), sgd(model), callbacks=(), precision="fp16", parallel=plan, **settings
    )
    inputs, labels = samples(72).tensors
    size = 12 // trainer.parallel.data_size
    options: dict[str, Any] = {"train_dataloader_kwargs": {"shuffle": False}, "log_every": 1}
    data = torch.utils.data.TensorDataset(inputs.float(), labels)
    trainer.train(data, max_steps=4, per_device_batch_size=size, **options)
    return trainer


@program.scenario
def as_by_hand() -> Report:
    """SGD shows every factor that a gradient is wrong by."""
    one = network()
    by_hand(one, 4)
    plans = {"DDP": "auto", "FSDP2": Plan(shard=2), "stages": Plan(pipeline=2)}
    found = {}
    for name, plan in plans.items():
        trainer = under(plan)
        trainer.save_checkpoint(program.folder / f"{name}.pt", save_optimizer=False)
        saved = read_file(program.folder / f"{name}.pt")["model_state_dict"]
        trainer.processes.barrier()
        found[name] = max(float((saved[key] - value).abs().max()) for key, value in one.state_dict().items())
    moved = max(
        float((own - value).abs().max()) for own, value in zip(one.parameters(), network().parameters(), strict=True)
    )
    return found | {"moved": moved}


@program.scenario
def stages_of_one_mind() -> Report:
    """The first scale is the last stage's choice, or too large for the gradients that stages send each other."""
    found: Report = {}
    for name, scaling in (("chosen", None), ("too large", LossScaling(initial=2.0**22))):
        trainer = under(Plan(pipeline=2), loss_scaling=scaling)
        found[name] = trainer.storage.series("loss_scale").values[:4]
        found[f"{name}, skipped"] = trainer.storage.series("skipped_steps").values[:4]
    return found


@program.scenario
def statistics_of_stages() -> Report:
    """Running means of every stage, beside those of a pass over the same micro-batches by hand."""
    torch.manual_seed(7)
    blocks = [nn.Sequential(nn.Linear(4 if not place else 8, 8), nn.BatchNorm1d(8), nn.Tanh()) for place in range(4)]
    model = nn.Sequential(*blocks, nn.Linear(8, 3))
    whole = deepcopy(model)
    inputs, labels = samples(48).tensors
    data = torch.utils.data.TensorDataset(inputs.float(), labels)
    trainer = Trainer(model, nn.CrossEntropyLoss(), sgd(model, 0.0), callbacks=(), parallel=Plan(pipeline=2))
    trainer.train(data, 1, per_device_batch_size=12, train_dataloader_kwargs={"shuffle": False})
    trainer.save_checkpoint(program.folder / "statistics.pt", save_optimizer=False)
    saved = read_file(program.folder / "statistics.pt")["model_state_dict"]
    trainer.processes.barrier()
    for part in inputs.float().split(6):
        whole(part)
    buffers = dict(whole.named_buffers())
    return {"buffers": len(buffers), "off": max(float((saved[name] - buffers[name]).abs().max()) for name in buffers)}


if __name__ == "__main__":
    program.run(Path(sys.argv[1]))
