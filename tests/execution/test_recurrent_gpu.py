"""Dropout of recurrent layers on a CUDA device, which cuDNN draws from a generator of its own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

from treadle import Trainer
from treadle.data import RandomState
from treadle.data.random_state import hold_dropout

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers = KINDS[kind](4, 16, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.layers(inputs)[0][:, -1])
        return output


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(96, 5, 4, generator=generator), torch.randint(3, (96,), generator=generator))


def trainer(kind: str, **options: Any) -> Trainer:
    torch.manual_seed(1)
    model = Recurrent(kind)
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    return Trainer(
        model, nn.CrossEntropyLoss(), optimizer, seed=3, device="cuda", callbacks=(), deterministic=True, **options
    )


def weights(own: Trainer) -> list[Tensor]:
    return [weight.detach().cpu().clone() for weight in own.model.parameters()]


def trained(kind: str, **options: Any) -> list[Tensor]:
    own = trainer(kind, **options)
    own.train(data(), num_epochs=3, per_device_batch_size=8, log_every=1000)
    return weights(own)


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def test_states_of_all_generators_hold_the_dropout_of_recurrent_layers() -> None:
    layers = nn.LSTM(4, 16, num_layers=2, dropout=0.5).cuda()
    inputs = torch.ones(3, 2, 4, device="cuda")
    torch.manual_seed(5)
    by_hand = [layers(inputs)[0] for _ in range(3)]
    drawn = torch.rand(3, device="cuda")
    assert not torch.equal(by_hand[0], by_hand[1])
    torch.manual_seed(5)
    hold_dropout(torch.device("cuda"))
    assert torch.equal(layers(inputs)[0], by_hand[0])
    state = RandomState().state_dict()
    for _ in range(2):
        assert torch.equal(layers(inputs)[0], by_hand[1])
        assert torch.equal(layers(inputs)[0], by_hand[2])
        assert torch.equal(torch.rand(3, device="cuda"), drawn)
        RandomState().load_state_dict(state)
    torch.manual_seed(99)
    hold_dropout(torch.device("cuda"))
    layers(inputs)
    RandomState().load_state_dict(state)
    assert torch.equal(layers(inputs)[0], by_hand[1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_repeats_itself_in_one_process(kind: str) -> None:
    assert same(trained(kind), trained(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_auto_gives_the_numbers_of_ordinary_steps(kind: str) -> None:
    for execution in ("auto", "graph"):
        assert same(trained(kind, execution=execution), trained(kind, execution="eager"))


@pytest.mark.parametrize("execution", ["eager", "graph"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_cut_resumes_with_the_same_dropout(kind: str, execution: str, tmp_path: Path) -> None:
    options = {"num_epochs": 3, "per_device_batch_size": 8, "save_every": "5 steps", "log_every": 1000}
    whole = trainer(kind, execution=execution, run_dir=tmp_path / "whole")
    whole.train(data(), **options)
    first = trainer(kind, execution=execution, run_dir=tmp_path / "cut")
    first.train(data(), max_steps=17, **options)
    torch.manual_seed(999)  # another process would have another generator
    hold_dropout(torch.device("cuda"))
    second = trainer(kind, execution=execution, run_dir=tmp_path / "cut")
    begun: list[int] = []
    second.training_run_start = lambda: begun.append(second.progress.step)  # type: ignore[method-assign]
    result = second.train(data(), resume="auto", **options)
    assert (begun, result.steps) == ([17], 36)
    assert same(weights(whole), weights(second))
