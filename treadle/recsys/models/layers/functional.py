"""Scores of users and items from their embeddings."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from treadle.recsys.models.loss import at_least_float32

# Rows of embedding tables


def embedding_rows(table: nn.Embedding, ids: Tensor) -> Tensor:
    """Return the embedding of each id, as `table(ids)` does, with a gradient that is quicker to calculate.

    Calling the table costs three times as much on the way back: a CPU adds row after row, and a GPU sorts the ids
    first. A table whose gradient is no plain sum, because it is sparse or leaves padding out, is called all the same.

    >>> import torch
    >>> embedding_rows(nn.Embedding.from_pretrained(torch.tensor([[1.0], [2.0]])), torch.tensor([[1, 0]])).tolist()
    [[[2.0], [1.0]]]
    """
    if not is_plain(table):
        found: Tensor = table(ids)
        return found
    if ids.dim() == 1:
        return table.weight.index_select(0, ids)
    return table.weight.index_select(0, ids.reshape(-1)).view(*ids.shape, -1)


def is_plain(table: nn.Embedding) -> bool:
    """Whether the gradient of a table is the plain sum of those of its rows, and its rows are as they are.

    >>> is_plain(nn.Embedding(3, 2)), is_plain(nn.Embedding(3, 2, padding_idx=0))
    (True, False)
    """
    special = table.sparse or table.scale_grad_by_freq or table.max_norm is not None or table.padding_idx is not None
    return not special


def has_plain_rows(table: nn.Embedding) -> bool:
    """Whether the gradient of a table is sparse, and that of its rows as they are.

    >>> has_plain_rows(nn.Embedding(3, 2, sparse=True)), has_plain_rows(nn.Embedding(3, 2))
    (True, False)
    """
    special = table.scale_grad_by_freq or table.max_norm is not None or table.padding_idx is not None
    return table.sparse and not special


# Draws from Gaussian distributions, for autoencoders that have them inside


def draw_gaussian(mean: Tensor, logvar: Tensor) -> Tensor:
    """Return a draw that gradients flow through, in float32 at least.

    Kingma and Welling, "Auto-Encoding Variational Bayes", 2014. The noise is drawn in full precision, so that mixed
    precision rounds a training and does not make another one of it.

    >>> draw_gaussian(torch.ones(2), torch.full((2,), -torch.inf)).tolist()
    [1.0, 1.0]
    """
    deviation = (0.5 * at_least_float32(logvar)).exp()
    return at_least_float32(mean) + torch.randn_like(deviation) * deviation


# Matrices by relation: each row of a batch is multiplied with that of its own relation


BLOCK = 64
"""How many rows of one relation are multiplied together; fewer waste less on rare relations, more are quicker."""


def projected(vectors: Tensor, relations: Tensor, matrices: Tensor) -> Tensor:
    """Return each row's vectors times the matrix of its relation.

    A matrix for each row would be `[rows, size, other]`, a hundred times as much as the vectors. Instead rows of the
    same relation are brought together into blocks, and each block is multiplied with one matrix. How many blocks there
    are at most follows from the shapes, so that nothing reads the device.

    Args:
        vectors: `[rows, size]`, or several of each row, `[rows, n, size]`.
        relations: The relation of each row.
        matrices: `[relations, size, other]`.

    Returns:
        `[rows, other]` or `[rows, n, other]`.

    >>> matrices = torch.stack([torch.eye(2), 3 * torch.eye(2)])
    >>> projected(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([1, 0]), matrices).tolist()
    [[3.0, 6.0], [1.0, 2.0]]
    """
    rows, size, other = len(vectors), vectors.shape[-1], matrices.shape[2]
    several = vectors.shape[1] if vectors.dim() == 3 else 1
    slots, owners, number = _blocks(relations, len(matrices))
    lined_up = vectors.new_zeros(number * BLOCK, several * size)
    lined_up = lined_up.index_copy(0, slots, vectors.reshape(rows, several * size))
    # Not by indexing: torch sorts the gradient of that.
    chosen = functional.embedding(owners, matrices.flatten(1)).view(number, size, other)
    product = torch.bmm(lined_up.view(number, BLOCK * several, size), chosen)
    found = product.view(number * BLOCK, several * other).index_select(0, slots)
    return found.view(rows, several, other) if vectors.dim() == 3 else found


def _blocks(relations: Tensor, n_relations: int) -> tuple[Tensor, Tensor, int]:
    """Return the slot of each row in blocks of one relation each, the relation of each block, and their number."""
    rows, device = len(relations), relations.device
    number = rows // BLOCK + min(n_relations, rows)
    ordered, order = relations.sort(stable=True)
    starts = torch.searchsorted(ordered, torch.arange(n_relations + 1, device=device))
    needed = torch.div(starts.diff() + BLOCK - 1, BLOCK, rounding_mode="floor")
    ends = needed.cumsum(0)
    within = torch.arange(rows, device=device) - starts[ordered]
    slots = torch.empty_like(order).scatter_(0, order, (ends - needed)[ordered] * BLOCK + within)
    owners = torch.searchsorted(ends, torch.arange(number, device=device), right=True).clamp_(max=n_relations - 1)
    return slots, owners, number


def dot(users: Tensor, items: Tensor) -> Tensor:
    """Return the inner product of each user with the item beside it, `[rows]`, or with several, `[rows, n]`.

    >>> dot(torch.tensor([[1.0, 2.0]]), torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])).tolist()
    [[11.0, 2.0]]
    """
    if items.dim() > users.dim():
        users = users.unsqueeze(-2)
    return (users * items).sum(dim=-1)


def margins(users: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Return by how much positives score above negatives, `[rows]`, or `[rows, n]` for several negatives a row.

    Scores are linear in the item, so this is one product in place of two, and half of what a gradient goes through.

    >>> margins(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 1.0]])).tolist()
    [8.0]
    """
    if negatives.dim() > positives.dim():
        positives = positives.unsqueeze(-2)
    return dot(users, positives - negatives)


def all_dots(users: Tensor, items: Tensor) -> Tensor:
    """Return the inner product of each user with every item, one user after the other, `[rows * items]`."""
    return torch.matmul(users, items.T).view(-1)


# Margins between rows of embedding tables, with one gradient for both sides of a difference


def row_margins(users: nn.Embedding, items: nn.Embedding, user: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Return by how much positives score above negatives, `[rows]`, as `margins` of rows of two tables does.

    Most of what a factorisation costs on a CPU is waiting for memory. Positives and negatives are rows of one table:
    here their gradients are added up in one tensor of the size of the table, where autograd would fill two with zeros
    and add them, and nothing is kept for the way back but what is needed there. The gradient can be taken once, and
    not be differentiated again.

    Args:
        users: The table of users.
        items: The table of items.
        user: The ids of users, `[rows]`.
        positive: The ids of items, `[rows]`.
        negative: The ids of other items, `[rows]`; or `[rows, n]` for several a row, which autograd is left to do.

    >>> tables = [nn.Embedding.from_pretrained(torch.tensor([[1.0, 2.0], [0.0, 3.0]])) for _ in range(2)]
    >>> row_margins(*tables, torch.tensor([0]), torch.tensor([1]), torch.tensor([0])).tolist()
    [1.0]
    """
    weights = users.weight, items.weight
    if negative.dim() == 1 and is_plain(users) and is_plain(items):
        found: Tensor = _RowMargins.apply(*weights, user, positive, negative)  # type: ignore[no-untyped-call]
        return found
    if negative.dim() == 1 and has_plain_rows(users) and has_plain_rows(items):
        sparse: Tensor = _SparseRowMargins.apply(*weights, user, positive, negative)  # type: ignore[no-untyped-call]
        return sparse
    return margins(*(embedding_rows(*one) for one in ((users, user), (items, positive), (items, negative))))


class _RowMargins(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, user_table: Tensor, item_table: Tensor, user: Tensor, positive: Tensor, negative: Tensor
    ) -> Tensor:
        own = user_table.index_select(0, user)
        differences = item_table.index_select(0, positive).sub_(item_table.index_select(0, negative))
        ctx.save_for_backward(own, differences, user, positive, negative)
        ctx.shapes = user_table.shape, item_table.shape
        return (own * differences).sum(dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        own, differences, user, positive, negative = ctx.saved_tensors
        by_row = gradient.unsqueeze(1)
        of_users = of_items = None
        if ctx.needs_input_grad[0]:
            of_users = own.new_zeros(ctx.shapes[0]).index_add_(0, user, differences * by_row)
        if ctx.needs_input_grad[1]:
            added = own * by_row
            of_items = own.new_zeros(ctx.shapes[1]).index_add_(0, positive, added)
            # A factor of -1 takes three times as long as a change of signs: it adds number by number.
            of_items.index_add_(0, negative, added.neg_())
        return of_users, of_items, None, None, None


class _SparseRowMargins(_RowMargins):
    """The same for tables with sparse gradients: of positives and negatives, one gradient with the rows of both."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        own, differences, user, positive, negative = ctx.saved_tensors
        by_row = gradient.unsqueeze(1)
        of_users = of_items = None
        if ctx.needs_input_grad[0]:
            of_users = _sparse_table(ctx.shapes[0], user, differences * by_row)
        if ctx.needs_input_grad[1]:
            rows = len(own)
            added = own.new_empty(2 * rows, own.shape[1])
            torch.mul(own, by_row, out=added[:rows])
            torch.neg(added[:rows], out=added[rows:])
            of_items = _sparse_table(ctx.shapes[1], torch.cat([positive, negative]), added)
        return of_users, of_items, None, None, None


def _sparse_table(shape: torch.Size, rows: Tensor, values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, shape, check_invariants=False)
