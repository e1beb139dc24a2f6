"""Evaluation leaves out its last, short batch."""

from torch import nn

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "evaluation_data"

model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(
    points(), 2, points(60, 1), eval_dataloader_kwargs={"batch_size": 16, "drop_last": True}
)
