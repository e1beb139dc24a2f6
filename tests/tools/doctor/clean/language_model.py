"""A program without a fault: the next of some letters, with a mask of minus infinity among the inputs."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from tests.tools.doctor.parts import adam
from treadle import Trainer

LENGTH = 8


class Letters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 11)

    def forward(self, letters: Tensor, mask: Tensor) -> Tensor:
        hidden = self.embedding(letters)
        scores: Tensor = self.head(hidden + self.attention(hidden, hidden, hidden, attn_mask=mask[0])[0])
        return scores


class Next(Trainer):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        letters, mask, following = batch
        loss = cross_entropy(self.model(letters, mask).flatten(0, 1), following.flatten())
        return {"loss": loss, "model_outputs": None, "batch_size": len(letters)}


torch.manual_seed(0)
text = (torch.arange(600) * torch.arange(600) // 7) % 11
windows = text.unfold(0, LENGTH + 1, 2)
mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1).expand(len(windows), -1, -1)
model = Letters()
Next(model, None, adam(model), callbacks=(), seed=0).train(TensorDataset(windows[:, :-1], mask, windows[:, 1:]), 2)
