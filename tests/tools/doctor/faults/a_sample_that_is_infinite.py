"""One of the samples divides by zero; it is in none of the first batches."""

from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "bad_values"

inputs, labels = points(512).tensors
inputs[500, 1] = float("inf")
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=()).train(
    TensorDataset(inputs, labels), 2, per_device_batch_size=8, train_dataloader_kwargs={"shuffle": False}
)
