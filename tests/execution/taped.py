"""Small runs that are recorded on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils.data import TensorDataset

from tests.execution.recording import TapeRecorder
from treadle import Trainer
from treadle.execution import Execution, GraphExecution


class Recorded(Trainer):
    """A trainer that records on the CPU."""

    def __init__(self, *args: Any, required: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, execution="eager", **kwargs)
        self.recorder, self.required = TapeRecorder(), required

    def create_execution(self) -> Execution:
        recorder = self.create_recorder()
        return Execution(self) if recorder is None else GraphExecution(self, recorder, required=self.required)

    def create_recorder(self) -> Any:
        return self.recorder


def times_in_tries(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], *, runs: int) -> dict[str, float]:
    """Have each way take so many seconds where it is tried, after so many runs; tries and the compiler cost nothing."""

    def timed(run: Callable[[], None], trainer: Any) -> float:
        for _ in range(runs):
            run()
        return seconds[run.__self__.name]  # type: ignore[attr-defined]

    monkeypatch.setattr("treadle.execution.candidates.timed", timed)
    monkeypatch.setattr("treadle.execution.auto.seconds_to_compile", lambda trainer: 0.0)
    monkeypatch.setattr("treadle.execution.auto.FIXED", 0.0)
    monkeypatch.setattr("treadle.execution.auto.TRIES", 0)
    return seconds


def model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.ReLU(), nn.Linear(8, 3))


def data(count: int = 40) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator))


def train(
    kind: type[Trainer],
    *,
    dropout: float = 0.0,
    callbacks: Any = (),
    trainer: Any = None,
    fused: bool = False,
    dataset: Any = None,
    **run: Any,
) -> Any:
    network = model(dropout)
    options = trainer or {}
    optimizer = optim.SGD(network.parameters(), lr=0.125, momentum=0.5, foreach=not fused, fused=fused)
    built = kind(network, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks, seed=3, **options)
    run = {"num_epochs": 3, "per_device_batch_size": 8, **run}
    return built, built.train(dataset or data(), **run)


def same_state(one: Trainer, other: Trainer) -> None:
    for (name, mine), theirs in zip(one.model.state_dict().items(), other.model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name
    for mine, theirs in zip(one.optimizer.state.values(), other.optimizer.state.values(), strict=True):
        assert torch.equal(mine["momentum_buffer"], theirs["momentum_buffer"])
