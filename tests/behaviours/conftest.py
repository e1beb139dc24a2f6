"""Real trainers of a small linear model, and one that records everything it does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle.callback import EVENTS, TrainerCallback
from treadle.trainer import Trainer

VERBS = (
    "create_train_dataloader",
    "create_eval_dataloader",
    "_prepare_model_and_optimizer",
    "_create_run_config",
    "create_scheduler",
    "training_run_start",
    "train_epoch_start",
    "calculate_train_batch_loss",
    "backward_step",
    "_clip_gradients",
    "optimizer_step",
    "scheduler_step",
    "optimizer_zero_grad",
    "train_epoch_end",
    "eval_epoch_start",
    "calculate_eval_batch_loss",
    "eval_epoch_end",
    "training_run_epoch_end",
    "training_run_end",
    "evaluation_run_start",
    "evaluation_run_end",
)


def _recorded_verb(name: str) -> Callable[..., Any]:
    def verb(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(name)
        return getattr(Trainer, name)(self, *args, **kwargs)

    verb.__name__ = name
    return verb


def _recorded_event(name: str) -> Callable[..., None]:
    def event(self: Any, trainer: Any, **kwargs: Any) -> None:
        trainer.calls.append(name)

    return event


class _CallsTrainer(Trainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.calls: list[str] = []
        super().__init__(*args, **kwargs)


RecordingTrainer: Any = type("RecordingTrainer", (_CallsTrainer,), {name: _recorded_verb(name) for name in VERBS})
Recorder: Any = type("Recorder", (TrainerCallback,), {name: _recorded_event(name) for name in EVENTS})

MakeTrainer = Callable[..., Any]


def samples(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 2, generator=generator)
    return TensorDataset(inputs, inputs @ torch.tensor([[1.0], [-2.0]]) + 0.5)


@pytest.fixture
def data() -> TensorDataset:
    """24 samples: with the default batch size of 8, three steps an epoch."""
    return samples(24)


@pytest.fixture
def ragged() -> TensorDataset:
    """19 samples: with the default batch size of 8, batches of 8, 8 and 3."""
    return samples(19)


@pytest.fixture
def make_trainer() -> MakeTrainer:
    """A function that makes a trainer, always with the same weights; `kind=` is its class, `build=` makes its model."""

    def make(*callbacks: Any, kind: Any = Trainer, lr: float = 0.05, momentum: float = 0.9, **kwargs: Any) -> Any:
        torch.manual_seed(0)
        build = kwargs.pop("build", lambda: nn.Linear(2, 1))
        model = kwargs.pop("model", None) or build()
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        options = {"seed": 1, "device": "cpu", **kwargs}
        return kind(model, nn.MSELoss(), optimizer, callbacks=callbacks, **options)

    return make


@pytest.fixture
def recording_trainer(make_trainer: MakeTrainer) -> Any:
    """A trainer whose `calls` names every verb and every event, in the order they happened."""
    return make_trainer(Recorder, kind=RecordingTrainer)
