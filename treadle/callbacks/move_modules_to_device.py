"""Brings the modules that a trainer holds beside its model to the device."""

from typing import Any

from torch import nn

from treadle.callback import TrainerCallback
from treadle.loop.interfaces import RunningTrainer


class MoveModulesToDeviceCallback(TrainerCallback):
    """Moves every module that is an attribute of the trainer, such as a loss or a metric, to its device.

    The model itself is moved by the trainer. Behind another door, attributes of its trainer are moved as well.
    """

    def on_training_run_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Move the modules before training."""
        self._move(trainer)

    def on_evaluation_run_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Move the modules before an evaluation by itself."""
        self._move(trainer)

    @staticmethod
    def _move(trainer: RunningTrainer) -> None:
        for owner in (trainer, getattr(trainer, "face", None)):
            for name, value in getattr(owner, "__dict__", {}).items():
                if isinstance(value, nn.Module) and name != "model":
                    value.to(trainer.device)
