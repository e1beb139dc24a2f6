"""What is hidden of sequences before a model learns what comes next."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.recsys.data.small import Sequential
from tests.recsys.data.test_transforms import LENGTHS, PLACES, batch
from treadle.errors import ConfigError
from treadle.recsys import Config, Interaction, create_dataset
from treadle.recsys.data.transforms import HideItemsAndSegments, pretrain_columns

HIDDEN = 10
"""The number of items, padding included."""


def hidden(seed: int = 1, places: Tensor = PLACES, rows: Interaction | None = None, **given: Any) -> list[Tensor]:
    """Return the sequences, and the columns that are added to them."""
    config = Config(
        Sequential, "toy", config_dict={"loss_type": "CE", "mask_ratio": 0.4, "MAX_ITEM_LIST_LENGTH": 6, **given}
    )
    table = {"user_id": ["u"] * 9, "item_id": [str(n) for n in range(9)], "timestamp": list(range(9))}
    transform = HideItemsAndSegments(config, create_dataset(config, inter=table))
    made = transform(batch()[: len(places)] if rows is None else rows, seed, places)
    return [made[name] for name in ("item_id_list", *pretrain_columns("item_id_list"))]


def test_items_are_hidden_as_often_as_asked_for_and_the_last_one_always() -> None:
    count = total = 0
    for seed in range(200):
        items, masked, *_ = hidden(seed)
        for row, length in enumerate(LENGTHS):
            assert masked[row, length - 1] == HIDDEN
            assert masked[row, length:].tolist() == [0] * (6 - length)
            kept = masked[row] != HIDDEN
            assert torch.equal(masked[row][kept], items[row][kept])
            count += int((masked[row, : length - 1] == HIDDEN).sum())
            total += length - 1
    assert count / total == pytest.approx(0.4, abs=0.03)


def test_the_other_item_of_a_position_is_none_of_the_sequence_and_any_other() -> None:
    drawn: Counter[int] = Counter()
    for seed in range(100):
        items, _, others, *_ = hidden(seed)
        for row in range(len(items)):
            assert not set(others[row].tolist()) & {0, HIDDEN, *items[row].tolist()}
        drawn.update(others[0].tolist())
    # The first sequence has the item 1 alone.
    assert set(drawn) == set(range(2, 10))


def test_a_segment_is_a_stretch_of_up_to_half_a_sequence() -> None:
    sizes: Counter[int] = Counter()
    begins: Counter[int] = Counter()
    for seed in range(300):
        items, _, _, without, own, others = hidden(seed)
        for row, length in enumerate(LENGTHS):
            inside = own[row, :length] != HIDDEN
            places = inside.nonzero().flatten().tolist()
            assert places == list(range(places[0], places[0] + len(places))) if places else length == 1
            assert torch.equal(own[row, :length][inside], items[row, :length][inside])
            assert (without[row, :length][inside] == HIDDEN).all()
            assert torch.equal(without[row, :length][~inside], items[row, :length][~inside])
            assert torch.equal(others[row, :length] != HIDDEN, inside)
            for column in (without, own, others):
                assert column[row, length:].tolist() == [0] * (6 - length)
            if length == 6:
                sizes[len(places)] += 1
                begins[places[0]] += 1
    assert set(sizes) == {1, 2, 3}
    assert set(begins) == set(range(6))


def test_the_other_segment_is_a_stretch_of_what_was_chosen() -> None:
    found: set[int] = set()
    for seed in range(200):
        *_, own, others = hidden(seed)
        for row in range(len(own)):
            values = others[row][(others[row] != HIDDEN) & (others[row] != 0)].tolist()
            # Of one user there are the items 1 to 9 in this order.
            assert all(b == a + 1 for a, b in pairwise(values))
            found |= set(values)
    assert found == set(range(1, 10))


def test_what_is_hidden_depends_on_the_place_of_a_row_and_not_on_its_batch() -> None:
    whole = hidden()
    half = hidden(places=PLACES[3:], rows=batch()[3:])
    assert all(torch.equal(one[3:], other) for one, other in zip(whole, half, strict=True))
    assert any(not torch.equal(one, other) for one, other in zip(whole, hidden(2), strict=True))


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="mask_ratio=0 must be a share above 0 and up to 1"):
        hidden(mask_ratio=0)
