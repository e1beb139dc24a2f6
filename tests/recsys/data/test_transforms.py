"""Transforms of sequences, each against what it is said to do."""

from collections import Counter
from typing import Any

import pytest
import torch

from tests.recsys.data.small import Sequential
from treadle.errors import ConfigError
from treadle.recsys import Config, Interaction, create_dataset
from treadle.recsys.data.transforms import make_transform

LENGTHS = [1, 3, 6, 6, 2, 5]
PLACES = torch.arange(100, 106)


def batch() -> Interaction:
    items = torch.tensor(
        [[1 + (row + step) % 9 if step < length else 0 for step in range(6)] for row, length in enumerate(LENGTHS)]
    )
    return Interaction({"item_id_list": items, "item_length": torch.tensor(LENGTHS)})


def transformed(seed: int = 1, places: torch.Tensor = PLACES, **given: Any) -> tuple[Config, Interaction]:
    given = {"loss_type": "BPR", "MAX_ITEM_LIST_LENGTH": 6, **given}
    config = Config(Sequential, "toy", config_dict=given)
    table = {"user_id": ["u"] * 9, "item_id": [str(n) for n in range(9)], "timestamp": list(range(9))}
    transform = make_transform(config, create_dataset(config, inter=table))
    assert transform is not None
    return config, transform(batch()[: len(places)], seed, places)


def test_hidden_items_are_replaced_and_told_apart() -> None:
    hidden = total = 0
    drawn: Counter[int] = Counter()
    for seed in range(200):
        config, rows = transformed(seed, transform="mask_itemseq", mask_ratio=0.5)
        masked, positives = rows[config["MASK_ITEM_SEQ"]], rows[config["POS_ITEMS"]]
        places, negatives = rows[config["MASK_INDEX"]], rows[config["NEG_ITEMS"]]
        assert masked.shape == (6, 6)
        assert positives.shape == places.shape == negatives.shape == (6, 3)
        for row, length in enumerate(LENGTHS):
            own = rows["item_id_list"][row]
            gone = (masked[row] == 10).nonzero().flatten().tolist()
            assert all(place < length for place in gone)
            assert torch.equal(masked[row][masked[row] != 10], own[masked[row] != 10])
            kept = gone[-3:]
            padding = 3 - len(kept)
            assert places[row].tolist() == [0] * padding + kept
            assert positives[row].tolist() == [0] * padding + own[kept].tolist()
            assert negatives[row][:padding].tolist() == [0] * padding
            assert not set(negatives[row][padding:].tolist()) & set(own.tolist())
            drawn.update(negatives[0][padding:].tolist() if row == 0 else [])
            hidden += len(gone)
            total += length
    assert abs(hidden / total - 0.5) < 0.03
    assert set(drawn) == set(range(2, 10))  # the first row has item 1 alone


def test_some_rows_hide_their_last_item_only() -> None:
    config, rows = transformed(transform="mask_itemseq", mask_ratio=0.5, ft_ratio=1.0)
    last = [length - 1 for length in LENGTHS]
    assert rows[config["MASK_INDEX"]][:, -1].tolist() == last
    assert rows[config["POS_ITEMS"]].sum(dim=1).tolist() == rows["item_id_list"][range(6), last].tolist()


def test_a_softmax_needs_no_items_against_the_hidden_ones() -> None:
    config, rows = transformed(transform="mask_itemseq", mask_ratio=0.5, loss_type="CE")
    assert config["NEG_ITEMS"] not in rows


def test_a_sequence_turned_about_has_its_zeros_first() -> None:
    config, rows = transformed(transform="inverse_itemseq")
    assert rows[config["INVERSE_ITEM_SEQ"]].tolist()[:2] == [[0, 0, 0, 0, 0, 1], [0, 0, 0, 2, 3, 4]]


def test_a_cropped_sequence_is_a_stretch_of_the_old_one() -> None:
    begins = set()
    for seed in range(50):
        config, rows = transformed(seed, transform="crop_itemseq", eta=0.5)
        cropped, lengths = rows[config["CROP_ITEM_SEQ"]], rows[config["CROP_ITEM_SEQ_LEN"]]
        assert lengths.tolist() == [0, 1, 3, 3, 1, 2]
        for row, length in enumerate(lengths.tolist()):
            own = rows["item_id_list"][row, : LENGTHS[row]].tolist()
            part = cropped[row, :length].tolist()
            assert any(own[start : start + length] == part for start in range(LENGTHS[row] - length + 1))
            assert cropped[row, length:].tolist() == [0] * (6 - length)
        begins.add(int(cropped[2, 0]))
    assert begins == {3, 4, 5, 6}


def test_a_reordered_sequence_has_one_stretch_in_another_order() -> None:
    different = set()
    for seed in range(50):
        config, rows = transformed(seed, transform="reorder_itemseq", beta=0.5)
        changed = rows[config["REORDER_ITEM_SEQ"]]
        assert torch.equal(changed.sort(dim=1).values, rows["item_id_list"].sort(dim=1).values)
        moved = (changed != rows["item_id_list"]).nonzero()
        for row in range(6):
            places = moved[moved[:, 0] == row, 1].tolist()
            assert not places or max(places) - min(places) < LENGTHS[row] // 2
        different.add(tuple(changed[3].tolist()))
    assert len(different) > 5


@pytest.mark.parametrize(
    "given",
    [
        {"transform": "mask_itemseq", "mask_ratio": 0.5},
        {"transform": "crop_itemseq", "eta": 0.5},
        {"transform": "reorder_itemseq", "beta": 0.5},
    ],
)
def test_what_happens_to_a_row_depends_on_its_place_and_not_on_its_batch(given: dict[str, Any]) -> None:
    _, whole = transformed(7, **given)
    _, part = transformed(7, places=PLACES[:3], **given)
    for name in whole:
        assert torch.equal(whole[name][:3], part[name])
    _, other = transformed(8, **given)
    assert any(not torch.equal(whole[name], other[name]) for name in whole)


def test_a_function_of_ones_own_can_be_the_transform() -> None:
    def lengthen(dataset: Any, rows: Interaction) -> Interaction:
        rows["item_length"] = rows["item_length"] + dataset.item_num
        return rows

    _, rows = transformed(transform=lengthen)
    assert rows["item_length"].tolist() == [length + 10 for length in LENGTHS]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"transform": "mask_itemsq"}, "transform='mask_itemsq' does not exist; did you mean 'mask_itemseq'?"),
        ({"transform": "user_defined"}, "transform='user_defined' does not exist; there are"),
        ({"transform": "mask_itemseq"}, "mask_ratio=None must be a share above 0 and up to 1: transform needs it"),
        ({"transform": "crop_itemseq", "eta": 2}, "eta=2 must be a share above 0 and up to 1: transform needs it"),
    ],
)
def test_a_transform_that_does_not_exist_or_lacks_a_share_is_an_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        transformed(**given)
    assert message in str(error.value)
