"""Rows of tables, and their gradients, are those of the tables themselves."""

from typing import Any

import pytest
import torch
from torch import nn

from treadle.recsys.models.layers.functional import embedding_rows

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sparse": {"sparse": True},
    "padded": {"padding_idx": 0},
    "by frequency": {"scale_grad_by_freq": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(6,), (3, 2)], ids=["one negative", "several"])
def test_rows_and_gradients_are_those_of_calling_the_table(kind: str, shape: tuple[int, ...]) -> None:
    ids = torch.tensor([0, 3, 3, 1, 0, 3]).view(shape)
    found = []
    for way in (embedding_rows, nn.Embedding.__call__):
        torch.manual_seed(0)
        table = nn.Embedding(4, 3, **KINDS[kind])
        rows = way(table, ids)
        (rows * torch.arange(1.0, 1 + rows.numel()).view_as(rows)).sum().backward()
        gradient = table.weight.grad
        assert gradient is not None
        found.append((rows.detach(), gradient.to_dense(), gradient.is_sparse))
    (mine, gradient, is_sparse), (theirs, expected, was_sparse) = found
    assert torch.equal(mine, theirs)
    assert torch.equal(gradient, expected)
    assert is_sparse is was_sparse
