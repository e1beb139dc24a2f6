"""Metrics on a device: never read when they are put, read all at once when they are flushed."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.guards.no_sync import DEVICES, DeviceReadError, no_sync
from treadle import Phase, Trainer
from treadle.events import EventStorage, get_event_storage, read_values


@pytest.mark.parametrize("device", DEVICES)
def test_b37_putting_anything_reads_nothing(device: str) -> None:
    storage = EventStorage()
    values = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    with no_sync(device), storage, storage.name_scope("a"):
        get_event_storage().put_scalar("loss", values.mean())
        storage.put_scalar("loss", values[:1])
        storage.put_scalars({"Acc@1": values.max(), "count": (values > 1).sum()}, smoothing_hint=False)
        storage.put_histogram("weights", values, bins=10)
        storage.put_image("cat", values.reshape(3, 1, 1))
        storage.step()
    assert storage.latest() == {"a/loss": (1.0, 0), "a/Acc@1": (3.0, 0), "a/count": (2, 0)}


@pytest.mark.parametrize("device", DEVICES)
def test_the_guard_of_this_test_notices_a_flush(device: str) -> None:
    storage = EventStorage()
    storage.put_scalar("loss", torch.ones((), device=device))
    with pytest.raises(DeviceReadError), no_sync(device):
        storage.latest()


@pytest.fixture
def reads() -> Iterator[list[str]]:
    """The names of the methods that read a tensor, in the order they are called, while they still read."""
    calls: list[str] = []

    def counted(name: str) -> Any:
        original = getattr(Tensor, name)

        def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return original(tensor, *args, **kwargs)

        return patch.object(Tensor, name, call)

    with counted("cpu"), counted("item"), counted("__float__"), counted("numpy"), counted("tolist"):
        yield calls


def test_a_flush_of_many_types_copies_once(reads: list[str]) -> None:
    """On the host the numbers are then looked at one by one, which waits for nobody."""
    storage = EventStorage()
    for step in range(50):
        storage.put_scalar("loss", torch.tensor(step / 2), cur_iter=step)
        storage.put_scalar("half", torch.tensor(0.5, dtype=torch.bfloat16), cur_iter=step)
        storage.put_scalar("exact", torch.tensor(0.1, dtype=torch.float64), cur_iter=step)
        storage.put_scalar("count", torch.tensor(2**53 + 1), cur_iter=step)
        storage.put_scalar("flag", torch.tensor(True), cur_iter=step)
    assert storage.flush() == {"loss": 24.5, "half": 0.5, "exact": 0.1, "count": 2**53 + 1, "flag": True}
    assert reads == ["cpu", *["tolist"] * 250]


def test_a_flush_of_one_type_copies_once(reads: list[str]) -> None:
    storage = EventStorage()
    for step in range(50):
        storage.put_scalar("loss", torch.tensor(step / 2), cur_iter=step)
    storage.flush()
    assert reads == ["tolist"]


def test_tensors_of_all_shapes_are_read_as_they_are() -> None:
    values = [
        torch.arange(6).reshape(2, 3),
        torch.tensor([[0.5]]),
        torch.zeros(0),
        torch.tensor(True),
        torch.ones(3, 2).T,
    ]
    assert read_values(values) == [[[0, 1, 2], [3, 4, 5]], 0.5, [], True, [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]


class Reporting(nn.Module):
    """A model that reports the mean of its outputs, as the pages on training show it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        if self.training:
            get_event_storage().put_scalar("mean_output", outputs.mean())
        return outputs


class Guarded(Trainer):
    """A trainer whose updates must not read the device."""

    guarded = 0

    def update(self, phase: Phase, window: list[Any]) -> None:
        with no_sync(self.device.type):
            super().update(phase, window)
        self.guarded += 1


@pytest.mark.parametrize("device", DEVICES)
def test_b37_a_model_logs_in_its_steps_without_reading_and_the_logged_values_are_right(device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(12, 3, generator=generator), torch.randn(12, 1, generator=generator))
    model = Reporting().to(device)
    trainer = Guarded(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), (), seed=3, device=device)
    loading = {"shuffle": False, "num_workers": 0, "persistent_workers": False}
    with trainer.storage:
        trainer.train(data, 2, per_device_batch_size=4, log_every=3, train_dataloader_kwargs=loading)
    assert trainer.guarded == 6
    logged = trainer.storage.series("mean_output")
    assert logged.steps == list(range(6))
    assert logged.values == pytest.approx(synchronous_means(data), rel=1e-6)


def synchronous_means(data: TensorDataset) -> list[float]:
    """Return what a plain loop computes that reads the mean of its outputs in every step."""
    model, means = Reporting(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with EventStorage():
        for _ in range(2):
            for begin in (0, 4, 8):
                inputs, targets = (tensor[begin : begin + 4] for tensor in data.tensors)
                outputs = model(inputs)
                means.append(outputs.mean().item())
                optimizer.zero_grad()
                nn.functional.mse_loss(outputs, targets).backward()
                optimizer.step()
    return means
