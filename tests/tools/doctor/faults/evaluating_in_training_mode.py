"""A callback for evaluation puts the model back into training mode too early."""

from typing import Any

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer, TrainerCallback

FAULT = "wrong_mode"


class Early(TrainerCallback):
    def on_eval_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        trainer.model.train()


model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=(Early(),)).train(points(), 2, points(64, 1))
