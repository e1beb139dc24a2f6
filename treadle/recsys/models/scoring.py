"""Scores of users and items from their embeddings."""

import torch
from torch import Tensor


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
