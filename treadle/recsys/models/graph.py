"""The graph of users and items, and products with it."""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.histories import csr_matrix, unique_pairs


class Graph(Constants):
    """An undirected graph of users and items, each edge with a weight, to be multiplied with features of its nodes.

    Nodes are the users by their ids, then the items by theirs. Products are calculated in float32, whatever autocast
    says, or in float64 if the features are; backwards they are products with the same graph, for it is symmetric.
    Nothing in them reads the device, and a CUDA graph can capture them.

    Args:
        users, items: The pairs that are joined, without repetitions, sorted by user and item.
        n_users, n_items: How many ids there are, padding included.
        normalised: Whether an edge weighs 1 / sqrt(degree of one end * degree of the other), and not 1.

    Attributes:
        n_nodes: How many nodes there are.
        starts, neighbours, weights: The edges by node, in CSR form.
        degrees: How many edges each node has.
        pair: Which of the pairs each edge is made of.
        order: The nodes, those with most edges first.
    """

    starts: Tensor
    neighbours: Tensor
    weights: Tensor
    degrees: Tensor
    pair: Tensor
    order: Tensor

    def __init__(self, users: Tensor, items: Tensor, n_users: int, n_items: int, *, normalised: bool = True) -> None:
        self.n_nodes, self.n_users, self.n_items = n_users + n_items, n_users, n_items
        by_item = items.sort(stable=True).indices
        degrees = torch.cat([torch.bincount(users, minlength=n_users), torch.bincount(items, minlength=n_items)])
        starts = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        super().__init__(
            starts=starts.int(),
            neighbours=torch.cat([items + n_users, users[by_item]]).int(),
            pair=torch.cat([torch.arange(len(users)), by_item]).int(),
            degrees=degrees.float(),
            order=degrees.sort(descending=True, stable=True).indices.int(),
            ends=torch.stack([users, items + n_users]).int(),
        )
        whole = torch.ones(len(users))
        self.hold(weights=self.pair_weights(whole)[self.pair] if normalised else whole[self.pair])

    @classmethod
    def of(cls, dataset: Dataset, *, normalised: bool = True) -> "Graph":
        """Return the graph of the data for training."""
        users, items, _ = unique_pairs(dataset)
        return cls(users, items, dataset.user_num, dataset.item_num, normalised=normalised)

    @property
    def n_pairs(self) -> int:
        """How many pairs of a user and an item are joined."""
        return len(self.pair) // 2

    def pair_weights(self, kept: Tensor) -> Tensor:
        """Return the weight 1 / sqrt(degree * degree) of each pair in the graph that has some pairs only.

        Args:
            kept: 1 for pairs that are in it, and 0 for others, which also get the weight 0.
        """
        ends: Tensor = self.ends
        degrees = kept.new_zeros(self.n_nodes).index_add_(0, ends[0], kept).index_add_(0, ends[1], kept)
        scale = degrees.clamp(min=1).rsqrt()
        return kept * scale[ends[0]] * scale[ends[1]]

    def edge_weights(self, pair_weights: Tensor) -> Tensor:
        """Return the weights of edges, of which each pair makes two."""
        return pair_weights[self.pair]

    def forward(self, features: Tensor, weights: Tensor | None = None, opposite: Tensor | None = None) -> Tensor:
        """Return the weighted sum of the neighbours of each node.

        Args:
            features: `[nodes, size]`.
            weights: Other weights than the graph's own, one for each edge.
            opposite: The weights of the same edges in the other direction; the same as `weights` without it.
        """
        product: Tensor = _Product.apply(features, self, weights, opposite)  # type: ignore[no-untyped-call]
        return product

    def opposite_edges(self) -> Tensor:
        """Return the place of the edge that leads back, for each edge."""
        half = self.n_pairs
        back = torch.empty_like(self.pair)
        there = torch.arange(half, device=back.device, dtype=back.dtype)
        back[half:] = self.pair[half:]
        back[self.pair[half:].long()] = there + half
        return back

    def mean_of_powers(
        self, features: Tensor, n_layers: int, weights: Tensor | None = None, messages: torch.dtype | None = None
    ) -> Tensor:
        """Return the mean of `features`, `A @ features`, `A @ A @ features` and so on, up to the power `n_layers`.

        It is calculated as `x + A (x + A (x + A x))`: one pass for each layer, and no layer is kept. As the graph is
        symmetric, so is this, and going backwards is the same calculation.

        Args:
            features: `[nodes, size]`.
            n_layers: The highest power.
            weights: Other weights than the graph's own, one for each edge, the same in both directions.
            messages: In which type nodes read their neighbours on a GPU with Triton; bfloat16 halves what is read.
                Sums are in float32.
        """
        mean: Tensor = _Powers.apply(features, self, n_layers, weights, messages)  # type: ignore[no-untyped-call]
        return mean

    def nodes(self, users: Tensor, *items: Tensor) -> Tensor:
        """Return the numbers of nodes in one tensor: first the users, then all the items, whatever their shape."""
        return torch.cat([users, *((some + self.n_users).reshape(-1) for some in items)])

    def split(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of users, and those of items."""
        return features[: self.n_users], features[self.n_users :]


class _Product(torch.autograd.Function):
    """A product with a graph. No layer of torch, for the gradient of those reads the device."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, features: Tensor, graph: Graph, weights: Tensor | None, opposite: Tensor | None
    ) -> Tensor:
        _keep(ctx, graph, weights=weights, opposite=opposite, dtype=features.dtype)
        return multiply(graph, widened(features), graph.weights if weights is None else weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        back = ctx.weights if ctx.opposite is None else ctx.opposite
        found = _Product.apply(gradient, ctx.graph, back, ctx.weights)  # type: ignore[no-untyped-call]
        return found.to(ctx.dtype), None, None, None


class _Powers(torch.autograd.Function):
    """The mean of the powers of a graph, times features; its own gradient."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        features: Tensor,
        graph: Graph,
        n_layers: int,
        weights: Tensor | None,
        messages: torch.dtype | None,
    ) -> Tensor:
        _keep(ctx, graph, n_layers=n_layers, weights=weights, messages=messages, dtype=features.dtype)
        base = widened(features)
        share = 1 / (n_layers + 1)
        made = base * share if not n_layers else base
        for layer in range(1, n_layers + 1):
            made = multiply(
                graph,
                made,
                graph.weights if weights is None else weights,
                base,
                # The first product is of the features themselves; later ones are of what has its share already.
                scale=share if layer == 1 else 1.0,
                base_scale=share,
                messages=messages,
                last=layer == n_layers,
            )
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found = _Powers.apply(  # type: ignore[no-untyped-call]
            gradient, ctx.graph, ctx.n_layers, ctx.weights, ctx.messages
        )
        return found.to(ctx.dtype), None, None, None, None


def _keep(ctx: Any, graph: Graph, **values: Any) -> None:
    ctx.graph = graph
    for name, value in values.items():
        setattr(ctx, name, value)


def widened(features: Tensor) -> Tensor:
    """Return features in the type that products are calculated in: float32, or float64 if they are."""
    return features if features.dtype == torch.float64 else features.float()


class Sparse(Protocol):
    """A sparse matrix in CSR form: where rows start, their columns, and the rows with the longest first."""

    starts: Tensor
    neighbours: Tensor
    order: Tensor


def multiply(
    graph: Sparse,
    features: Tensor,
    weights: Tensor,
    base: Tensor | None = None,
    *,
    scale: float = 1.0,
    base_scale: float = 1.0,
    messages: torch.dtype | None = None,
    last: bool = True,
) -> Tensor:
    """Return `scale * A @ features + base_scale * base`, the way that is quickest where the graph is."""
    own = weights
    with torch.autocast(features.device.type, enabled=False):
        if features.device.type != "cuda":
            return _with_base(_by_bags(graph, features, own), base, scale, base_scale)
        if features.dtype != torch.float64 and _kernel_is_there():
            return _by_kernel(graph, features, own, base, scale, base_scale, messages, last)
        own = own.to(features.dtype)
        matrix = csr_matrix(graph.starts, graph.neighbours, own, (len(graph.starts) - 1, len(features)))
        if base is None:
            return torch.mm(matrix, features) if scale == 1.0 else torch.mm(matrix, features) * scale
        return torch.addmm(base, matrix, features, beta=base_scale, alpha=scale)


def _by_bags(graph: Sparse, features: Tensor, weights: Tensor) -> Tensor:
    # On a CPU this is 2.5 times as fast as torch's product in CSR form, and 20 times as fast as in COO form.
    return functional.embedding_bag(
        graph.neighbours,
        features,
        graph.starts,
        mode="sum",
        per_sample_weights=weights.to(features.dtype),
        include_last_offset=True,
    )


def _with_base(product: Tensor, base: Tensor | None, scale: float, base_scale: float) -> Tensor:
    if scale != 1.0:
        product.mul_(scale)
    return product if base is None else product.add_(base, alpha=base_scale)


def _kernel_is_there() -> bool:
    # Here, and not above: loading Triton takes a while, and only a GPU has a use for it.
    from treadle.recsys.models.graph_kernel import AVAILABLE

    return AVAILABLE


def _by_kernel(
    graph: Sparse,
    features: Tensor,
    weights: Tensor,
    base: Tensor | None,
    scale: float,
    base_scale: float,
    messages: torch.dtype | None,
    last: bool,
) -> Tensor:
    from treadle.recsys.models.graph_kernel import sum_neighbours

    narrow = torch.float32 if messages is None else messages
    return sum_neighbours(
        graph.starts,
        graph.neighbours,
        weights.float(),
        graph.order,
        features.to(narrow),
        base,
        scale=scale,
        base_scale=base_scale,
        dtype=torch.float32 if last else narrow,
    )


# Directed edges with weights, and weighted sums over them


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
