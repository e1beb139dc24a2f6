"""What the planted faults and the clean programs are made of: two clouds of points, and networks to tell them apart."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def points(count: int = 256, seed: int = 0) -> TensorDataset:
    """Return points in four dimensions, in two classes that differ by their mean."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=generator)
    inputs = torch.randn(count, 4, generator=generator) + labels[:, None] * 2.0 - 1.0
    return TensorDataset(inputs, labels)


class Network(nn.Module):
    """Two layers with dropout and a norm between them."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)
        self.last = nn.Linear(width, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a score for each class."""
        hidden: Tensor = self.dropout(torch.relu(self.norm(self.first(inputs))))
        scores: Tensor = self.last(hidden)
        return scores


def adam(model: nn.Module, rate: float = 1e-3) -> torch.optim.Optimizer:
    """Return the optimizer of most programs here."""
    return torch.optim.AdamW(model.parameters(), lr=rate)
