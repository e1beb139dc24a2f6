"""A callback keeps the outputs of every batch, and the graph behind them."""

from typing import Any

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer, TrainerCallback

FAULT = "memory_grows"


class Keeping(TrainerCallback):
    def on_train_step_end(self, trainer: Any, batch_output: Any = None, **kwargs: Any) -> None:
        kept.append(batch_output["model_outputs"])


kept: list[Any] = []
model = Network(512)
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=(Keeping(),)).train(points(2048), 2)
