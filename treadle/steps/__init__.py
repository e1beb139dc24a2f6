"""Models that bring their own steps and optimizer, as modules of Lightning do, and the trainer for them."""

from treadle.steps.step_model import StepModel
from treadle.steps.step_trainer import StepTrainer

__all__ = ["StepModel", "StepTrainer"]
