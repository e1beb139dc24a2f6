"""Small real trainers for the tests of callbacks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle.trainer import Trainer


class ScriptedTrainer(Trainer):
    """A trainer whose evaluations report the given values of "score", one after the other."""

    def __init__(self, *args: Any, scores: list[Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scores = iter(scores or [])

    def eval_epoch_end(self) -> None:
        score = next(self.scores, None)
        if score is not None:
            self.run_history.update_metric("score", score)


MakeTrainer = Callable[..., ScriptedTrainer]


@pytest.fixture
def data() -> TensorDataset:
    """32 samples: with the default batch size of 8, four steps an epoch."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(32, 2, generator=generator)
    return TensorDataset(inputs, inputs @ torch.tensor([[1.0], [-2.0]]) + 0.5)


@pytest.fixture
def make_trainer() -> MakeTrainer:
    """A function that makes a trainer of a small linear model, always with the same weights."""

    def make(*callbacks: Any, model: nn.Module | None = None, lr: float = 0.05, **kwargs: Any) -> ScriptedTrainer:
        if model is None:
            torch.manual_seed(0)
            model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        return ScriptedTrainer(model, nn.MSELoss(), optimizer, callbacks=callbacks, seed=1, device="cpu", **kwargs)

    return make
