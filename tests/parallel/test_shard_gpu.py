"""Sharded weights on one GPU: the numbers of a plain run, compiled too."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle import Compile, Trainer
from treadle.parallel import Plan
from treadle.parallel.processes import leave_group

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.outward, self.inward = nn.LayerNorm(width), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.inward(torch.relu(self.outward(self.norm(hidden))))


class Network(nn.Module):
    """Some blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(16) for _ in range(3))
        self.head = nn.Linear(16, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """Leaves the group of one process that sharding made."""
    yield
    leave_group()


def losses(parallel: Plan | str, **settings: Any) -> list[float]:
    torch.manual_seed(0)
    model = Network()
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(96, 16, generator=generator), torch.randn(96, 1, generator=generator))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=(), seed=2, parallel=parallel, **settings)
    trainer.train(data, max_steps=8, per_device_batch_size=8, gradient_accumulation_steps=2, clip_norm=0.5, log_every=1)
    return [float(value) for value in trainer.storage.series("train_loss").values]


@pytest.mark.parametrize(
    ("plan", "settings"),
    [
        (Plan(shard="all"), {}),
        (Plan(shard="all", reshard_after_forward=False), {}),
        (Plan(shard="all", cpu_offload=True), {}),
        (Plan(shard="all"), {"compile": Compile(modules="blocks.*")}),
        (Plan(shard="all"), {"compile": True}),
    ],
    ids=["plain", "kept", "offloaded", "compiled blocks", "compiled"],
)
def test_sharded_weights_train_as_whole_ones(plan: Plan, settings: dict[str, Any]) -> None:
    assert losses(plan, **settings) == pytest.approx(losses("auto"), abs=1e-4)


def test_sharded_weights_train_in_bf16() -> None:
    own = losses(Plan(shard="all", gathered="bf16"), precision="bf16")
    assert own == pytest.approx(losses("auto", precision="bf16"), abs=0.05)
