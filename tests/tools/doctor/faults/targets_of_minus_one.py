"""Yes and no are written as 1 and -1, which a logistic loss takes without a word."""

from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam, points
from treadle import Trainer

FAULT = "bad_labels"

inputs, labels = points().tensors
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
Trainer(model, nn.BCEWithLogitsLoss(), adam(model), callbacks=()).train(
    TensorDataset(inputs, 2.0 * labels[:, None] - 1), 2
)
