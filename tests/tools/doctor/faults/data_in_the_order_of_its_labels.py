"""Training data is sorted by its labels, and is not shuffled."""

from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "data_order"

inputs, labels = points().tensors
order = labels.argsort()
data = TensorDataset(inputs[order], labels[order])
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(
    data, 2, train_dataloader_kwargs={"shuffle": False}
)
