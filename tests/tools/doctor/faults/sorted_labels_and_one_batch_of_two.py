"""Data is sorted by its labels; the end of one class is in the batches that are looked at."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "data_order"

inputs, labels = points().tensors
ones, zeros = (labels == 1).nonzero().flatten(), (labels == 0).nonzero().flatten()
order = torch.cat([ones[:68], zeros, ones[68:]])
data = TensorDataset(inputs[order], labels[order])
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(
    data, 2, per_device_batch_size=8, train_dataloader_kwargs={"shuffle": False}
)
