"""Margins between rows of embedding tables, with one gradient for both sides of a difference."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from treadle.recsys.models.gathering import is_plain, rows_of_table
from treadle.recsys.models.scoring import margins


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
    if negative.dim() == 1 and is_plain(users) and is_plain(items):
        weights = users.weight, items.weight
        found: Tensor = _RowMargins.apply(*weights, user, positive, negative)  # type: ignore[no-untyped-call]
        return found
    return margins(*(rows_of_table(*one) for one in ((users, user), (items, positive), (items, negative))))


class _RowMargins(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, user_table: Tensor, item_table: Tensor, user: Tensor, positive: Tensor, negative: Tensor
    ) -> Tensor:
        own = user_table.index_select(0, user)
        differences = item_table.index_select(0, positive).sub_(item_table.index_select(0, negative))
        ctx.save_for_backward(own, differences, user, positive, negative)
        ctx.lengths = user_table.shape[0], item_table.shape[0]
        return (own * differences).sum(dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        own, differences, user, positive, negative = ctx.saved_tensors
        by_row = gradient.unsqueeze(1)
        of_users = of_items = None
        if ctx.needs_input_grad[0]:
            of_users = _empty_table(ctx.lengths[0], own).index_add_(0, user, differences * by_row)
        if ctx.needs_input_grad[1]:
            added = own * by_row
            of_items = _empty_table(ctx.lengths[1], own).index_add_(0, positive, added)
            # A factor of -1 takes three times as long as a change of signs: it adds number by number.
            of_items.index_add_(0, negative, added.neg_())
        return of_users, of_items, None, None, None


def _empty_table(length: int, rows: Tensor) -> Tensor:
    return rows.new_zeros(length, rows.shape[1])
