"""Directed edges with weights, and weighted sums over them."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from treadle.recsys.models.constants import Constants
from treadle.recsys.models.graph import multiply, widened


class Rows(Constants):
    """Edges by the node that they are summed for, in CSR form.

    Args:
        owners: That node, of each edge.
        others: The node at the other end.
        n_rows: How many nodes there are to sum for.

    Attributes:
        starts, neighbours: The edges by node.
        order: The nodes, those with most edges first.
        place: Which of the edges as they were given each of them is.
    """

    starts: Tensor
    neighbours: Tensor
    order: Tensor
    place: Tensor

    def __init__(self, owners: Tensor, others: Tensor, n_rows: int) -> None:
        place = owners.sort(stable=True).indices
        counts = torch.bincount(owners, minlength=n_rows)
        super().__init__(
            starts=torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int(),
            neighbours=others[place].int(),
            order=counts.sort(descending=True, stable=True).indices.int(),
            place=place.int(),
        )


class Edges(Constants):
    """Edges from heads to tails; a head sums over its tails. They are sorted by head.

    Sums are calculated in float32, whatever autocast says, or in float64 if the features are. Weights are not learnt
    through them.

    Args:
        heads, tails: The two ends of each edge, sorted by head.
        n_heads: How many ids of heads there are.
        n_tails: How many ids of tails there are.

    Attributes:
        n_edges: How many edges there are.
        heads, tails: The two ends of each edge.
    """

    heads: Tensor
    tails: Tensor

    def __init__(self, heads: Tensor, tails: Tensor, n_heads: int, n_tails: int) -> None:
        super().__init__(heads=heads, tails=tails)
        self.n_edges, self.n_heads, self.n_tails = len(heads), n_heads, n_tails
        self.there = Rows(heads, tails, n_heads)
        self.back = Rows(tails, heads, n_tails)

    def forward(self, features: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of the tails of each head, `[n_heads, size]`.

        Args:
            features: Of all tails, `[n_tails, size]`.
            weights: One for each edge.
        """
        summed: Tensor = _WeightedSum.apply(features, weights, self.there, self.back)  # type: ignore[no-untyped-call]
        return summed


class _WeightedSum(torch.autograd.Function):
    """A product with a sparse matrix; its gradient is one with the transposed matrix, and reads no device."""

    @staticmethod
    def forward(ctx: FunctionCtx, features: Tensor, weights: Tensor, there: Rows, back: Rows) -> Tensor:
        own: Any = ctx
        own.there, own.back, own.dtype, own.weights = there, back, features.dtype, weights
        return multiply(there, widened(features), weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights = ctx.weights.index_select(0, ctx.back.place)
        found = multiply(ctx.back, widened(gradient.contiguous()), weights)
        return found.to(ctx.dtype), None, None, None


def softmax_by_head(scores: Tensor, edges: Edges) -> Tensor:
    """Return scores as shares of the head that each edge belongs to: the shares of a head add up to 1.

    >>> edges = Edges(torch.tensor([0, 0, 2]), torch.tensor([1, 2, 0]), 3, 3)
    >>> softmax_by_head(torch.tensor([1.0, 1.0, 7.0]), edges).tolist()
    [0.5, 0.5, 1.0]
    """
    lowest = scores.new_full((edges.n_heads,), -torch.inf)
    highest = lowest.scatter_reduce(0, edges.heads, scores, "amax")
    powers = (scores - highest[edges.heads]).exp()
    totals = scores.new_zeros(edges.n_heads).index_add_(0, edges.heads, powers)
    return powers / totals[edges.heads]
