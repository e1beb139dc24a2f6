"""The generator inside cuDNN is kept with all others; tests/execution/test_recurrent_gpu.py draws from it."""

import pytest
import torch
from torch import nn

from treadle.data import RandomState
from treadle.data.random_state import draws_in_cudnn, held_dropout

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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device, whose state would be put back")
def test_a_state_that_was_saved_on_a_cuda_device_is_taken_up_without_one() -> None:
    state = {**RandomState().state_dict(), "cuda": torch.zeros(16), "cudnn_dropout": torch.zeros(8)}
    RandomState().load_state_dict(state)
    assert held_dropout() is None
