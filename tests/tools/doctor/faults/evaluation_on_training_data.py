"""Half of the samples to evaluate on are among those trained on."""

from torch import nn
from torch.utils.data import ConcatDataset, Subset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "evaluation_data"

train, fresh = points(256), points(32, 1)
evaluated = ConcatDataset([fresh, Subset(train, range(32))])
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(train, 2, evaluated)
