"""Matrices by relation: each row of a batch is multiplied with that of its own relation."""

import torch
from torch import Tensor
from torch.nn import functional

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
