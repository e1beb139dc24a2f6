"""A batch of interactions: columns, rows, devices, sorting."""

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from treadle.data import size_of
from treadle.data.batch import mover
from treadle.errors import DataError
from treadle.recsys import Interaction, cat_interactions


def batch() -> Interaction:
    return Interaction(
        {
            "user_id": torch.tensor([1, 1, 2, 3]),
            "item_id": torch.tensor([4, 5, 4, 6]),
            "rating": torch.tensor([0.5, 1.0, 0.0, 1.0]),
            "words": torch.tensor([[1, 2], [3, 0], [4, 5], [0, 0]]),
        }
    )


@pytest.mark.parametrize(
    ("index", "items"),
    [
        (torch.tensor([3, 0]), [6, 4]),
        (torch.tensor([True, False, False, True]), [4, 6]),
        (np.array([2, 2]), [4, 4]),
        (np.array([False, True, False, False]), [5]),
        ([1, 0], [5, 4]),
        ([True, False, True, False], [4, 4]),
        (range(1, 3), [5, 4]),
        (slice(1, None, 2), [5, 6]),
        ([], []),
    ],
)
def test_rows_are_taken_by_whatever_tensors_are_indexed_with(index: Any, items: list[int]) -> None:
    taken = batch()[index]
    assert taken["item_id"].tolist() == items
    assert len(taken) == len(taken["words"]) == len(items)


def test_a_number_takes_one_row() -> None:
    assert len(batch()[2]) == len(batch()[-1]) == 1
    assert (batch()[2]["words"].tolist(), batch()[-1]["item_id"].tolist()) == ([[4, 5]], [6])


def test_columns_are_read_by_name_or_as_attributes() -> None:
    rows = batch()
    assert rows.columns == list(rows) == ["user_id", "item_id", "rating", "words"]
    assert rows.rating is rows["rating"] is rows.interaction["rating"]
    assert "rating" in rows
    assert "time" not in rows
    with pytest.raises(KeyError, match="there is no column 'item_ids'; did you mean 'item_id'"):
        rows["item_ids"]
    with pytest.raises(AttributeError, match="no attribute 'nothing', and no such column"):
        _ = rows.nothing


def test_lists_arrays_and_data_frames_become_tensors() -> None:
    frame = pd.DataFrame({"user_id": [1, 2], "rating": [0.5, 1.0]})
    made = Interaction(frame)
    assert (made["user_id"].dtype, made["rating"].dtype) == (torch.int64, torch.float32)
    ragged = Interaction({"words": [[1, 2, 3], [4]], "numbers": np.array([0.5, 2.0])})
    assert ragged["words"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert ragged["numbers"].dtype == torch.float32
    assert Interaction({"time": torch.tensor([0.1], dtype=torch.float64)})["time"].dtype == torch.float64


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"a": torch.zeros(2), "b": torch.zeros(3)},
            "the columns of an interaction differ in length: {'a': 2, 'b': 3}",
        ),
        ({"a": "text"}, "column 'a' is a str; give a tensor, an array or a list"),
        ({"a": ["x", "y"]}, "column 'a' holds values that are no numbers"),
        ([1, 2], "an Interaction is made of a dict or a data frame, not of list"),
    ],
)
def test_what_is_no_table_is_an_error(given: Any, message: str) -> None:
    with pytest.raises(DataError) as error:
        Interaction(given)
    assert str(error.value).startswith(message)


def test_an_update_adds_and_replaces_columns_of_the_same_length() -> None:
    rows = batch()
    rows.update(Interaction({"label": torch.ones(4), "rating": torch.zeros(4)}))
    assert rows["rating"].sum() == 0
    rows.update({"neg_item_id": torch.zeros(4, 3)})
    assert rows.columns[-2:] == ["label", "neg_item_id"]
    with pytest.raises(DataError, match="differ in length"):
        rows.update({"short": torch.ones(3)})


def test_columns_can_be_dropped_set_and_prefixed() -> None:
    rows = batch()
    rows.drop("words")
    del rows["rating"]
    rows["label"] = torch.ones(4)
    rows.add_prefix("neg_")
    assert rows.columns == ["neg_user_id", "neg_item_id", "neg_label"]
    with pytest.raises(KeyError, match="there is no column 'rating'"):
        rows.drop("rating")
    with pytest.raises(KeyError, match="columns are set by their name, not by int"):
        rows[0] = torch.ones(4)  # type: ignore[index]


def test_rows_are_repeated_in_rounds_or_one_by_one() -> None:
    rows = batch()
    assert rows.repeat(2)["item_id"].tolist() == [4, 5, 4, 6, 4, 5, 4, 6]
    assert rows.repeat(2)["words"].shape == (8, 2)
    assert rows.repeat_interleave(2)["item_id"].tolist() == [4, 4, 5, 5, 4, 4, 6, 6]
    assert len(rows.repeat_interleave(torch.tensor([0, 3, 0, 1]))) == 4


def test_sorting_keeps_the_order_of_equal_rows() -> None:
    rows = batch()
    rows.sort(by="rating")
    assert rows["item_id"].tolist() == [4, 4, 5, 6]
    assert rows["user_id"].tolist() == [2, 1, 1, 3]
    rows.sort(by=["item_id", "user_id"], ascending=[False, True])
    assert rows["user_id"].tolist() == [3, 1, 1, 2]
    rows.sort(by="words", ascending=False)
    assert rows["words"][:, 0].tolist() == [4, 3, 1, 0]
    with pytest.raises(DataError, match="needs as many values in ascending"):
        rows.sort(by=["item_id", "user_id"], ascending=[True])


def test_shuffling_follows_its_generator_and_keeps_rows_together() -> None:
    first, second = batch(), batch()
    first.shuffle(torch.Generator().manual_seed(1))
    second.shuffle(torch.Generator().manual_seed(1))
    assert first["item_id"].tolist() == second["item_id"].tolist()
    pairs = set(zip(first["user_id"].tolist(), first["item_id"].tolist(), strict=True))
    assert pairs == {(1, 4), (1, 5), (2, 4), (3, 6)}


def test_moving_leaves_the_old_interaction_alone_and_may_take_some_columns_only() -> None:
    rows = batch()
    moved = rows.to("meta", selected_field="rating")
    assert moved["rating"].is_meta
    assert not moved["user_id"].is_meta
    assert not rows["rating"].is_meta
    assert all(column.is_meta for column in rows.to("meta").interaction.values())
    assert rows.cpu()["rating"].tolist() == rows["rating"].tolist()
    assert rows.numpy()["item_id"].tolist() == [4, 5, 4, 6]


def test_the_core_knows_the_size_of_a_batch_and_how_to_move_it() -> None:
    rows = batch()
    assert size_of(rows) == 4
    moved = mover(torch.device("meta"))(rows)
    assert isinstance(moved, Interaction)
    assert moved["user_id"].is_meta


def test_interactions_with_the_same_columns_are_put_together() -> None:
    both = cat_interactions([batch(), batch()[:1]])
    assert both["item_id"].tolist() == [4, 5, 4, 6, 4]
    with pytest.raises(DataError, match="there are no interactions to put together"):
        cat_interactions([])
    other = batch()
    other.drop("words")
    with pytest.raises(DataError, match=r"they differ in \['words'\]"):
        cat_interactions([batch(), other])


def test_a_copy_has_the_same_columns() -> None:
    assert copy.deepcopy(batch())["item_id"].tolist() == [4, 5, 4, 6]
    assert repr(batch()).splitlines()[:2] == ["4 rows", "    user_id, (4,), cpu, torch.int64"]


def test_taking_rows_by_their_places_is_what_brackets_do() -> None:
    batch = Interaction({"user_id": [1, 1, 2], "items": [[1, 2], [3, 4], [5, 6]]})
    places = torch.tensor([2, 0, 2, 1])
    taken, expected = batch.take(places), batch[places]
    assert len(taken) == 4
    assert taken.columns == expected.columns
    assert all(torch.equal(taken[name], expected[name]) for name in taken)
