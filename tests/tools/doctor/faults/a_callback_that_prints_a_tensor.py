"""A callback prints the norm of the weights after every update."""

from typing import Any

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer, TrainerCallback

FAULT = "blocks_device"


class Talkative(TrainerCallback):
    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        norm = trainer.model.last.weight.norm()
        lines.append(f"norm {float(norm):.3f}")  # planted


lines: list[str] = []
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=(Talkative(),)).train(points(), 2, points(64, 1))
