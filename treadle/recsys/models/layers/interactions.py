"""Layers in which fields, or neighbours, act on each other."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class BaseFactorizationMachine(nn.Module):
    """The second order of a factorisation machine: the products of all pairs of fields, in linear time.

    Rendle, "Factorization machines", 2010.

    >>> fields = torch.tensor([[[1.0], [2.0], [3.0]]])
    >>> BaseFactorizationMachine()(fields).item()  # 1 * 2 + 1 * 3 + 2 * 3
    11.0

    Args:
        reduce_sum: Whether to add up the dimensions of the embedding.
    """

    def __init__(self, reduce_sum: bool = True) -> None:
        super().__init__()
        self.reduce_sum = reduce_sum

    def forward(self, input_x: Tensor) -> Tensor:
        """Return `[rows, 1]` from embeddings `[rows, fields, size]`; `[rows, size]` if nothing is added up."""
        pairs = 0.5 * (input_x.sum(dim=1).square() - input_x.square().sum(dim=1))
        return pairs.sum(dim=1, keepdim=True) if self.reduce_sum else pairs


class BiGNNLayer(nn.Module):
    """A layer of neural graph collaborative filtering: `(A + I) X W1 + (A X * X) W2`.

    Wang, He, Wang, Feng and Chua, "Neural graph collaborative filtering", 2019.

    Args:
        in_dim: The length of an input.
        out_dim: The length of an output.
    """

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.in_dim, self.out_dim = in_dim, out_dim
        self.linear = nn.Linear(in_dim, out_dim)
        self.interactTransform = nn.Linear(in_dim, out_dim)

    def forward(self, lap_matrix: Any, eye_matrix: Any, features: Tensor) -> Tensor:
        """Return the next features.

        Args:
            lap_matrix: `A`: a graph, or anything else that is called with `X` and returns `A X`, or a sparse tensor.
            eye_matrix: Not used: that a node is its own neighbour needs no matrix. RecBole's models pass one.
            features: The features of each node, `X`.
        """
        neighbours = torch.sparse.mm(lap_matrix, features) if isinstance(lap_matrix, Tensor) else lap_matrix(features)
        together: Tensor = self.linear(neighbours + features) + self.interactTransform(neighbours * features)
        return together


class AttLayer(nn.Module):
    """The attention of each of several vectors, by a network with one hidden layer.

    Args:
        in_dim: The length of a vector.
        att_dim: The size of the hidden layer.
    """

    def __init__(self, in_dim: int, att_dim: int) -> None:
        super().__init__()
        self.in_dim, self.att_dim = in_dim, att_dim
        self.w = nn.Linear(in_dim, att_dim, bias=False)
        self.h = nn.Parameter(torch.randn(att_dim))

    def forward(self, infeatures: Tensor) -> Tensor:
        """Return weights `[rows, vectors]` that add up to 1, of vectors `[rows, vectors, in_dim]`."""
        scores: Tensor = (self.w(infeatures).relu() * self.h).sum(dim=2)
        return scores.softmax(dim=1)


class SparseDropout(nn.Module):
    """Dropout of the values of a sparse tensor.

    Args:
        p: The probability to drop a value.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return the sparse tensor with some values zero, and the others scaled up; outside training as it is."""
        if not self.training or not self.p:
            return x
        x = x.coalesce()
        values = functional.dropout(x.values(), self.p)
        return torch.sparse_coo_tensor(x.indices(), values, x.shape, is_coalesced=True, check_invariants=False)
