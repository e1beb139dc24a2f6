"""Models that bring their own steps and optimizer, as modules of Lightning do, and the trainer for them."""

from treadle.lightning.module import StepModel
from treadle.lightning.trainer import StepTrainer

__all__ = ["StepModel", "StepTrainer"]
