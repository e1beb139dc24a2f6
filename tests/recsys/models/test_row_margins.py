"""Margins of rows of tables, and their gradients, are those of autograd."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recsys.models.tiny_ratings import build
from treadle.recsys import Interaction
from treadle.recsys.models.general_recommender.bpr import BPR
from treadle.recsys.models.layers.functional import margins, row_margins

USERS, POSITIVES, NEGATIVES = torch.tensor([0, 3, 3, 1]), torch.tensor([2, 2, 0, 4]), torch.tensor([1, 0, 2, 2])


def tables_of(dtype: torch.dtype = torch.float64, **given: Any) -> list[nn.Embedding]:
    torch.manual_seed(0)
    return [nn.Embedding(length, 3, dtype=dtype, **given) for length in (4, 5)]


def by_autograd(tables: list[nn.Embedding], negatives: Tensor) -> Tensor:
    users, items = tables
    return margins(users(USERS), items(POSITIVES), items(negatives))


def gradients_after(found: Tensor, tables: list[nn.Embedding]) -> list[Tensor | None]:
    (found * torch.arange(1, 1 + found.numel()).view_as(found)).sum().backward()
    return [table.weight.grad for table in tables]


@pytest.mark.parametrize(
    "kind", [{}, {"padding_idx": 2}, {"scale_grad_by_freq": True}], ids=["plain", "padded", "freq"]
)
@pytest.mark.parametrize("several", [False, True], ids=["one negative", "several"])
def test_margins_and_gradients_are_those_of_autograd(kind: dict[str, Any], several: bool) -> None:
    negatives = torch.stack([NEGATIVES, POSITIVES.flip(0)], dim=1) if several else NEGATIVES
    mine, theirs = tables_of(**kind), tables_of(**kind)
    found, expected = row_margins(*mine, USERS, POSITIVES, negatives), by_autograd(theirs, negatives)
    torch.testing.assert_close(found, expected)
    for gradient, wanted in zip(gradients_after(found, mine), gradients_after(expected, theirs), strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_positives_and_negatives_that_are_one_item_leave_a_gradient_of_zero() -> None:
    tables, items = tables_of(torch.float32), torch.tensor([0, 4, 1, 3])
    for gradient in gradients_after(row_margins(*tables, USERS, items, items), tables):
        assert gradient is not None
        assert not gradient.any()


@pytest.mark.parametrize("frozen", [0, 1], ids=["users", "items"])
def test_a_frozen_table_gets_no_gradient(frozen: int) -> None:
    tables, theirs = tables_of(), tables_of()
    for one in (tables, theirs):
        one[frozen].weight.requires_grad_(False)
    found = gradients_after(row_margins(*tables, USERS, POSITIVES, NEGATIVES), tables)
    expected = gradients_after(by_autograd(theirs, NEGATIVES), theirs)
    assert found[frozen] is expected[frozen] is None
    torch.testing.assert_close(found[1 - frozen], expected[1 - frozen])


def test_the_gradient_can_be_taken_again_but_not_differentiated() -> None:
    tables = tables_of()
    weights = [table.weight for table in tables]
    total = row_margins(*tables, USERS, POSITIVES, NEGATIVES).square().sum()
    first, second = (torch.autograd.grad(total, weights, retain_graph=True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    twice = torch.autograd.grad(total, weights, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        twice[0].sum().backward()


class Halved(BPR):
    """Its embeddings are half of what is in the tables."""

    def forward(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        users, items = super().forward(user, item)
        return users / 2, items


def test_a_subclass_with_embeddings_of_its_own_is_trained_on_those() -> None:
    model = build("BPR", embedding_size=2).model
    batch = Interaction({"user_id": [1, 2], "item_id": [1, 3], "neg_item_id": [2, 1]})
    with torch.no_grad():
        model.user_embedding.weight.div_(2)
        expected = model.calculate_loss(batch)
        model.user_embedding.weight.mul_(2)
        model.__class__ = Halved
        torch.testing.assert_close(model.calculate_loss(batch), expected)
