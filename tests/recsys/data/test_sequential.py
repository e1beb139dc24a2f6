"""Sequences: the rows and histories of RecBole's augmentation, without their copies."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.recsys.data.small import Sequential, tokens, toy_dataset
from treadle.errors import ConfigError, DataError
from treadle.recsys import Config, FeatureType, SequentialDataset, create_dataset
from treadle.recsys.data.sequential_dataset import DIENDataset

rows_of = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 8), st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=30
)


def made(rows: list[Any], **given: Any) -> SequentialDataset:
    table = {
        "user_id": [row[0] for row in rows],
        "item_id": [str(row[1]) for row in rows],
        "rating": [float(row[2]) for row in rows],
        "timestamp": [row[3] for row in rows],
    }
    config = Config(Sequential, "toy", config_dict={"loss_type": "CE", "topk": [1], "valid_metric": "MRR@1", **given})
    dataset = create_dataset(config, inter=table)
    assert isinstance(dataset, SequentialDataset)
    return dataset


def slow_rows(rows: list[Any], most: int) -> list[tuple[str, str, list[str], list[float]]]:
    """Every prefix of every user's sequence, as RecBole's augmentation makes them."""
    order: dict[str, list[Any]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row[3]):
        order[row[0]].append(row)
    found = []
    for user in dict.fromkeys(row[0] for row in rows):
        for place in range(1, len(order[user])):
            history = order[user][max(place - most, 0) : place]
            items, ratings = [str(row[1]) for row in history], [float(row[2]) for row in history]
            found.append((user, str(order[user][place][1]), items, ratings))
    return found


@given(rows_of, st.integers(1, 4))
def test_every_prefix_is_a_row(rows: list[Any], most: int) -> None:
    expected = slow_rows(rows, most)
    if not expected:
        with pytest.raises(DataError, match="no user of 'toy' has two interactions"):
            made(rows, MAX_ITEM_LIST_LENGTH=most)
        return
    dataset = made(rows, MAX_ITEM_LIST_LENGTH=most)
    batch = dataset[torch.arange(len(dataset))]
    assert batch["item_id_list"].shape == batch["rating_list"].shape == (len(expected), most)
    found = []
    for row in range(len(dataset)):
        length = int(batch["item_length"][row])
        items = dataset.id2token("item_id", batch["item_id_list"][row]).tolist()
        assert items[length:] == ["[PAD]"] * (most - length)
        user, item = (dataset.id2token(name, batch[name][row]) for name in ("user_id", "item_id"))
        found.append((user, item, items[:length], batch["rating_list"][row, :length].tolist()))
    assert found == expected


@given(rows_of, st.integers(1, 4))
def test_training_on_all_positions_has_every_interaction_but_the_first_as_a_target_once(
    rows: list[Any], most: int
) -> None:
    if not slow_rows(rows, most):
        return
    dataset = made(rows, MAX_ITEM_LIST_LENGTH=most)
    assert dataset.flat is not None
    begins, lengths = dataset.sequences()
    targets = [int(begin) + 1 + step for begin, length in zip(begins, lengths, strict=True) for step in range(length)]
    assert sorted(targets) == sorted(dataset.inter_feat["_target"].tolist())
    users = dataset.flat["user_id"]
    for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        assert 1 <= length <= most
        assert len(set(users[begin : begin + length + 1].tolist())) == 1


@given(rows_of, st.integers(1, 4))
def test_prefixes_are_all_parts_of_a_sequence_from_its_beginning(rows: list[Any], most: int) -> None:
    if not slow_rows(rows, most):
        return
    dataset = made(rows, MAX_ITEM_LIST_LENGTH=most)
    items = dataset.windows(*dataset.prefixes())["item_id_list"]
    found = [[name for name in dataset.id2token("item_id", row).tolist() if name != "[PAD]"] for row in items]
    order: dict[str, list[str]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row[3]):
        order[row[0]].append(str(row[1]))
    # A user with one interaction has nothing to train on.
    users = [user for user in dict.fromkeys(row[0] for row in rows) if len(order[user]) > 1]
    assert found == [order[user][max(end - most, 0) : end] for user in users for end in range(1, len(order[user]) + 1)]
    together = dataset.id2token("item_id", dataset.items_in_order()).tolist()
    assert together == [item for user in users for item in order[user]]


def test_of_each_user_the_last_stretch_alone_may_be_taken() -> None:
    train, *_ = made(ROWS, MAX_ITEM_LIST_LENGTH=2).build()
    assert isinstance(train, SequentialDataset)

    def shown(begins: torch.Tensor, lengths: torch.Tensor) -> list[list[str]]:
        rows = train.windows(begins, lengths)["item_id_list"]
        return [train.id2token("item_id", row[row != 0]).tolist() for row in rows]

    # Of user a the items 3, 1 and 4 are trained on, and of b 1 and 2; the last of them only as a target.
    assert shown(*train.sequences()) == [["3", "1"], ["1"]]
    assert shown(*train.prefixes(last_only=True)) == [["1"], ["1", "4"], ["1"], ["1", "2"]]
    narrow, *_ = made(ROWS, MAX_ITEM_LIST_LENGTH=1).build()
    assert isinstance(narrow, SequentialDataset)
    train = narrow
    assert shown(*train.sequences()) == [["1"], ["3"], ["1"]]
    assert shown(*train.sequences(last_only=True)) == [["1"], ["1"]]


ROWS = [("a", item, 1, time) for time, item in enumerate([3, 1, 4, 5, 2])] + [
    ("b", item, 1, item) for item in (1, 2, 3)
]


def test_leave_one_out_holds_out_the_last_two_targets_with_their_whole_histories() -> None:
    dataset = made(ROWS)
    train, valid, test = dataset.build()
    assert train is not None
    assert valid is not None
    assert test is not None
    assert (len(train), len(valid), len(test)) == (3, 1, 2)
    last = test[torch.arange(2)]
    assert dataset.id2token("item_id", last["item_id"]).tolist() == ["2", "3"]
    assert last["item_length"].tolist() == [4, 2]
    assert dataset.id2token("item_id", last["item_id_list"][0, :4]).tolist() == ["3", "1", "4", "5"]


def test_pairs_of_a_part_are_its_targets_and_the_first_item_of_a_user() -> None:
    train, valid, _ = made(ROWS).build()
    assert train is not None
    assert valid is not None
    assert sorted(tokens(train)) == [("a", "1"), ("a", "3"), ("a", "4"), ("b", "1"), ("b", "2")]
    assert sorted(tokens(valid)) == [("a", "5")]
    matrix = train.inter_matrix(form="csr", value_field="rating")
    assert matrix.sum() == 5
    assert train.history_item_matrix()[2].tolist() == [0, 3, 2]
    short = made(ROWS, MAX_ITEM_LIST_LENGTH=1).build()[0]
    assert short is not None
    assert sorted(tokens(short)) == sorted(tokens(train))


def test_what_was_seen_before_a_row_is_all_of_the_history() -> None:
    dataset = made(ROWS, MAX_ITEM_LIST_LENGTH=2)
    rows, items = dataset.seen_before()
    seen = dataset.id2token("item_id", items[rows == 3]).tolist()
    assert seen == ["3", "1", "4", "5"]


def test_list_fields_are_known_by_recboles_names() -> None:
    dataset: Any = made(ROWS)
    assert (dataset.item_id_list_field, dataset.item_list_length_field) == ("item_id_list", "item_length")
    assert dataset.field2type["item_id_list"] is FeatureType.TOKEN_SEQ
    assert dataset.field2type["rating_list"] is FeatureType.FLOAT_SEQ
    assert dataset.field2seqlen["item_id_list"] == dataset.max_item_list_len == 50
    assert dataset.num("item_id_list") == dataset.item_num


def test_histories_are_not_kept_in_memory() -> None:
    dataset = made([("a", item, 1, item) for item in range(200)], MAX_ITEM_LIST_LENGTH=100)
    kept = list(dataset.inter_feat.interaction.values())
    assert dataset.flat is not None
    kept += list(dataset.flat.interaction.values())
    assert max(column.numel() for column in kept) == 200


def test_columns_that_only_the_order_needs_have_no_lists_in_the_parts() -> None:
    train = made(ROWS, unused_col={"inter": ["timestamp", "rating"]}).build()[0]
    assert train is not None
    assert train[[0]].columns == ["user_id", "item_id", "item_length", "item_id_list"]
    assert "timestamp_list" not in train.field2type


def test_a_sequential_data_set_moves_as_a_whole() -> None:
    moved = made(ROWS).to("meta")
    assert isinstance(moved, SequentialDataset)
    assert moved.flat is not None
    assert moved.flat["item_id"].is_meta


def test_sequences_need_times(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a sequential model is trained, which needs the time of interactions"):
        toy_dataset(tmp_path, ROWS, Sequential, loss_type="CE", unload_col={"inter": ["timestamp"]})


def test_parts_that_are_split_already_see_what_comes_before_in_any_part() -> None:
    def table(rows: list[Any]) -> dict[str, list[Any]]:
        return {
            "user_id": [r[0] for r in rows],
            "item_id": [str(r[1]) for r in rows],
            "timestamp": [r[3] for r in rows],
        }

    config = Config(Sequential, "toy", config_dict={"loss_type": "CE"})
    dataset = create_dataset(config, inter=[table(ROWS[:3] + ROWS[5:7]), table(ROWS[3:5] + ROWS[7:])])
    train, valid, test = dataset.build()
    assert valid is None
    assert train is not None
    assert test is not None
    assert (len(train), len(test)) == (3, 3)
    assert test[torch.arange(3)]["item_length"].tolist() == [3, 4, 2]
    assert train[torch.arange(3)]["item_length"].tolist() == [1, 2, 1]


def test_histories_that_come_with_the_data_are_taken_as_they_are() -> None:
    part = {
        "user_id": ["s1", "s2"],
        "item_id": ["x", "y"],
        "item_id_list": [["y", "z", "x"], ["x"]],
    }
    given = {"loss_type": "CE", "MAX_ITEM_LIST_LENGTH": 2, "alias_of_item_id": ["item_id_list"]}
    dataset = create_dataset(Config(Sequential, "toy", config_dict=given), inter=[part, part])
    train, _, _ = dataset.build()
    assert isinstance(train, SequentialDataset)
    batch = train[torch.arange(2)]
    assert dataset.field2id_token["item_id"].tolist() == ["[PAD]", "x", "y", "z"]
    assert batch["item_id_list"].tolist() == [[3, 1], [1, 0]]
    assert batch["item_length"].tolist() == [2, 1]
    assert sorted(tokens(train)) == [("s1", "x"), ("s2", "x"), ("s2", "y")]
    assert train.seen_before()[1].tolist() == [3, 1, 1]
    with pytest.raises(ConfigError, match="train_all_positions needs the interactions themselves"):
        train.sequences()
    with pytest.raises(ConfigError, match="which only data that is split already may have"):
        create_dataset(Config(Sequential, "toy", config_dict=given), inter=part)


def test_histories_come_with_items_that_the_user_did_not_choose() -> None:
    class Evolving(Sequential):
        dataset_class = DIENDataset

    rows = {"user_id": ["a"] * 40, "item_id": [str(n % 5) for n in range(40)], "timestamp": list(range(40))}
    config = Config(Evolving, "toy", config_dict={"loss_type": "CE"})
    dataset = create_dataset(config, inter=rows)
    assert isinstance(dataset, DIENDataset)
    batch = dataset[torch.arange(len(dataset))]
    inside = batch["item_id_list"] != 0
    drawn = batch["neg_item_id_list"]
    assert (drawn != batch["item_id_list"])[inside].all()
    assert (drawn[~inside] == 0).all()
    assert set(drawn[inside].tolist()) == {1, 2, 3, 4, 5}
    again = create_dataset(config, inter=rows)
    assert torch.equal(again[torch.arange(len(again))]["neg_item_id_list"], drawn)
    with pytest.raises(DataError, match="there is one item only"):
        create_dataset(config, inter={"user_id": ["a", "a"], "item_id": ["x", "x"], "timestamp": [1, 2]})
