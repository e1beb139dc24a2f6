from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle.callbacks import MoveModulesToDeviceCallback
from treadle.trainer import Trainer


class Recorder(nn.Module):
    """Stands for a metric of the user's: it takes note of where it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_to: list[torch.device] = []

    def to(self, *args: Any, **kwargs: Any) -> "Recorder":
        self.sent_to.append(args[0])
        return self


class TrainerWithModules(Trainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.metric = Recorder()
        self.not_a_module = [Recorder()]


def make(model: nn.Module) -> TrainerWithModules:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return TrainerWithModules(model, nn.MSELoss(), optimizer, [MoveModulesToDeviceCallback], device="cpu")


def test_d26_modules_of_a_subclass_are_on_the_device_when_training_starts(data: TensorDataset) -> None:
    trainer = make(nn.Linear(2, 1))
    trainer.train(data, num_epochs=1)
    assert trainer.metric.sent_to == [torch.device("cpu")]
    assert trainer.not_a_module[0].sent_to == []


def test_d26_modules_of_a_subclass_are_on_the_device_when_an_evaluation_starts(data: TensorDataset) -> None:
    trainer = make(nn.Linear(2, 1))
    trainer.evaluate(data)
    assert trainer.metric.sent_to == [torch.device("cpu")]


def test_the_loss_is_moved_and_the_model_is_left_to_the_trainer() -> None:
    trainer = make(nn.Linear(2, 1))
    trainer.loss_func, trainer.model = Recorder(), Recorder()
    MoveModulesToDeviceCallback().on_training_run_start(trainer)
    assert trainer.loss_func.sent_to == [torch.device("cpu")]
    assert trainer.model.sent_to == []
