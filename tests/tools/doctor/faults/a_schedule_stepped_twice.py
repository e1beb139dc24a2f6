"""A callback steps the schedule once more, as it had to be done elsewhere."""

from functools import partial
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer, TrainerCallback
from treadle import TrainerPlaceholderValues as P

FAULT = "schedule_length"


class Stepping(TrainerCallback):
    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        trainer.scheduler.step()


model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=(Stepping(),)).train(
    points(), 2, create_scheduler_fn=partial(CosineAnnealingLR, T_max=P.NUM_UPDATE_STEPS_PER_EPOCH * 2)
)
