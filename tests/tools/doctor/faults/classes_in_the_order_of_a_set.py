"""Labels are numbered in the order of a set of words, another one in each process."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import Network, adam, points
from treadle import Trainer

FAULT = "not_repeatable"

words = ["warm", "cold"]
numbers = {word: number for number, word in enumerate(set(words))}
inputs, labels = points().tensors
labels = torch.tensor([numbers[words[label]] for label in labels.tolist()])
torch.manual_seed(0)
model = Network()
Trainer(model, nn.CrossEntropyLoss(), adam(model), callbacks=(), seed=0).train(TensorDataset(inputs, labels), 2)
