"""Dropout was switched off in the loop over batches and never came back."""

from typing import Any

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer, TrainerCallback

FAULT = "wrong_mode"


class Off(TrainerCallback):
    def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        trainer.model.dropout.eval()


model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=(Off(),)).train(points(), 2, points(64, 1))
