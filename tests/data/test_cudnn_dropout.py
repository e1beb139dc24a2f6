"""The generator inside cuDNN is kept with all others; tests/execution/test_recurrent_gpu.py draws from it."""

import pytest
import torch
from torch import nn

from treadle.data import RandomState, random_state
from treadle.data.cudnn_dropout import draws_in_cudnn

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.mark.parametrize(
    ("layer", "draws"),
    [
        (nn.LSTM(2, 2, num_layers=2, dropout=0.5), True),
        (nn.GRU(2, 2, num_layers=3, dropout=0.1), True),
        (nn.LSTM(2, 2, num_layers=2), False),
        (nn.Linear(2, 2), False),
    ],
)
def test_only_stacked_layers_with_dropout_draw_in_cudnn(layer: nn.Module, draws: bool) -> None:
    assert draws_in_cudnn(nn.Sequential(layer), CUDA) is draws
    assert not draws_in_cudnn(nn.Sequential(layer), CPU)


def test_the_state_of_all_generators_includes_that_of_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = torch.arange(8, dtype=torch.uint8)
    monkeypatch.setattr(random_state, "held_dropout", lambda: memory)
    state = RandomState().state_dict()
    memory.add_(1)
    assert state["cudnn_dropout"].tolist() == list(range(8))
    RandomState().load_state_dict(state)
    assert memory.tolist() == list(range(8))
    assert "cudnn_dropout" not in RandomState(cuda=False).state_dict()


def test_a_state_without_that_of_cudnn_leaves_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    state = RandomState().state_dict()
    memory = torch.arange(8, dtype=torch.uint8)
    monkeypatch.setattr(random_state, "held_dropout", lambda: memory)
    RandomState().load_state_dict(state)
    assert memory.tolist() == list(range(8))
