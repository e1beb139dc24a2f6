"""What a data set knows, and what it can be turned into."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.recsys.data.small import General, toy_dataset
from treadle.errors import ConfigError, DataError, MissingDependencyError
from treadle.recsys import Config, Dataset, FeatureSource, FeatureType, Interaction, create_dataset

ROWS = [("a", "x", 1, 10), ("b", "y", 5, 30), ("a", "z", 3, 20), ("a", "y", 2, 40)]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return toy_dataset(tmp_path, ROWS)


def test_numbers_of_users_items_and_interactions(dataset: Dataset) -> None:
    assert (dataset.user_num, dataset.item_num, dataset.inter_num, len(dataset)) == (3, 4, 4, 4)
    assert (dataset.num("user_id"), dataset.num("item_id"), dataset.num("rating")) == (3, 4, 1)
    assert (dataset.avg_actions_of_users, dataset.avg_actions_of_items) == (2.0, 4 / 3)
    assert dataset.sparsity == 1 - 4 / 3 / 4
    assert (dataset.uid_field, dataset.iid_field, dataset.label_field, dataset.time_field) == (
        "user_id",
        "item_id",
        "label",
        "timestamp",
    )


def test_fields_are_found_by_type_and_source(dataset: Dataset) -> None:
    assert dataset.fields() == ["user_id", "item_id", "rating", "timestamp"]
    assert dataset.fields(source=[FeatureSource.USER_ID, FeatureSource.ITEM_ID]) == ["user_id", "item_id"]
    assert dataset.fields(ftype=[FeatureType.FLOAT]) == dataset.float_like_fields == ["rating", "timestamp"]
    assert dataset.token_like_fields == ["user_id", "item_id"]
    assert dataset.seq_fields == []
    assert dataset.non_seq_fields == dataset.fields()


def test_a_new_field_can_be_made_known(dataset: Dataset) -> None:
    dataset.set_field_property("mood", FeatureType.FLOAT, FeatureSource.INTERACTION, 1)
    dataset.copy_field_property("neg_item_id", "item_id")
    assert (dataset.num("mood"), dataset.num("neg_item_id")) == (1, 4)
    with pytest.raises(DataError, match="has no field 'moods'; did you mean 'mood'"):
        dataset.num("moods")


def test_tokens_and_ids_lead_to_each_other(dataset: Dataset) -> None:
    assert dataset.token2id("item_id", "z") == 3
    assert dataset.token2id("item_id", ["z", "x"]).tolist() == [3, 1]
    assert dataset.token2id("item_id", np.array(["y"])).tolist() == [2]
    assert dataset.id2token("item_id", 3) == "z"
    assert dataset.id2token("item_id", [[1, 0], [2, 3]]).tolist() == [["x", "[PAD]"], ["y", "z"]]
    assert dataset.id2token("user_id", torch.tensor([2])).tolist() == ["b"]
    assert dataset.field2token_id["user_id"] == {"[PAD]": 0, "a": 1, "b": 2}
    assert set(dataset.field2id_token) == {"user_id", "item_id"}
    assert len(dataset.field2token_id) == 2


def test_numbers_stand_for_tokens_that_are_numbers() -> None:
    dataset = create_dataset(Config(General, "toy"), inter={"user_id": [10, 11], "item_id": [7, 7]})
    assert dataset.token2id("user_id", 11) == 2
    assert dataset.token2id("user_id", [11, 10]).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda data: data.token2id("item_id", "w"), "the data has no item_id 'w'"),
        (lambda data: data.token2id("item_id", ["x", "w", "v"]), "the data has no item_id 'w', 'v'"),
        (lambda data: data.token2id("item_id", list("x") + [f"n{n}" for n in range(9)]), "'n4' and 4 more"),
        (lambda data: data.id2token("item_id", 4), "item_id has no id 4: ids go from 0 to 3"),
        (lambda data: data.id2token("item_id", [0, -1]), "item_id has no id -1: ids go from 0 to 3"),
        (lambda data: data.token2id("rating", "5"), "the field 'rating' holds numbers, not tokens"),
        (lambda data: data.token2id("item", "x"), "the data set 'toy' has no field 'item'"),
        (lambda data: data.counter("rating"), "the interactions have no field 'rating' with one token a row"),
    ],
)
def test_an_id_never_seen_is_an_error(ask: Any, message: str, dataset: Dataset) -> None:
    with pytest.raises(DataError) as error:
        ask(dataset)
    assert message in str(error.value)


def test_a_slip_in_a_token_is_noticed() -> None:
    dataset = create_dataset(Config(General, "toy"), inter={"user_id": ["anna", "bert"], "item_id": ["x", "y"]})
    with pytest.raises(DataError, match="the data has no user_id 'annna'; did you mean 'anna'"):
        dataset.token2id("user_id", "annna")


def test_ids_are_counted(dataset: Dataset) -> None:
    assert dataset.user_counter == Counter({1: 3, 2: 1})
    assert dataset.item_counter == dataset.counter("item_id") == Counter({2: 2, 1: 1, 3: 1})


def test_interactions_are_a_sparse_matrix(dataset: Dataset) -> None:
    expected = np.zeros((3, 4))
    expected[1, 1] = expected[2, 2] = expected[1, 3] = expected[1, 2] = 1
    assert (dataset.inter_matrix().toarray() == expected).all()
    assert dataset.inter_matrix().format == "coo"
    weighted = dataset.inter_matrix(form="csr", value_field="rating")
    assert weighted.format == "csr"
    assert weighted[1, 3] == 3
    with pytest.raises(ConfigError, match="form='dense' does not exist; there are"):
        dataset.inter_matrix(form="dense")
    with pytest.raises(DataError, match="value_field='price' is no column of the interactions"):
        dataset.inter_matrix(value_field="price")


def test_histories_are_padded_matrices(dataset: Dataset) -> None:
    items, values, lengths = dataset.history_item_matrix(value_field="rating")
    assert items.tolist() == [[0, 0, 0], [1, 3, 2], [2, 0, 0]]
    assert values.tolist() == [[0, 0, 0], [1, 3, 2], [5, 0, 0]]
    assert lengths.tolist() == [0, 3, 1]
    users, ones, counts = dataset.history_user_matrix()
    assert users.tolist() == [[0, 0], [1, 0], [2, 1], [1, 0]]
    assert ones.tolist() == [[0, 0], [1, 0], [1, 1], [1, 0]]
    assert counts.tolist() == [0, 1, 2, 1]
    assert (items.dtype, values.dtype, lengths.dtype) == (torch.int64, torch.float32, torch.int64)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40),
    st.one_of(st.none(), st.integers(1, 6)),
)
def test_a_shortened_history_holds_some_of_the_items_of_each_user(pairs: list[Any], most: int | None) -> None:
    table = {"user_id": [f"u{user}" for user, _ in pairs], "item_id": [f"i{item}" for _, item in pairs]}
    dataset = create_dataset(Config(General, "toy"), inter=table)
    items, values, lengths = dataset.history_item_matrix(max_history_len=most)
    again, _, _ = dataset.history_item_matrix(max_history_len=most)
    assert torch.equal(items, again)
    for user in range(1, dataset.user_num):
        own = Counter(dataset.inter_feat["item_id"][dataset.inter_feat["user_id"] == user].tolist())
        length = int(lengths[user])
        assert length == min(sum(own.values()), most or sum(own.values()))
        assert Counter(items[user, :length].tolist()) <= own
        assert items[user, length:].tolist() == [0] * (items.shape[1] - length)
        assert values[user].tolist() == [1.0] * length + [0.0] * (items.shape[1] - length)


def test_a_copy_has_other_interactions_and_all_else_the_same(dataset: Dataset) -> None:
    part = dataset.copy(dataset.inter_feat[:2])
    assert (len(part), len(dataset), part.item_num) == (2, 4, 4)
    part.sort(by="item_id", ascending=False)
    assert part.inter_feat["item_id"].tolist() == [2, 1]
    assert dataset.inter_feat["item_id"].tolist() == [1, 2, 3, 2]
    part.shuffle()
    assert sorted(part.inter_feat["item_id"].tolist()) == [1, 2]


def test_a_data_set_moves_as_a_whole(dataset: Dataset) -> None:
    moved = dataset.to("meta")
    assert moved.inter_feat["item_id"].is_meta
    assert not dataset.inter_feat["item_id"].is_meta


def test_joining_adds_the_features_of_users_and_items() -> None:
    features = {"user": {"user_id": ["a", "b"], "age": [30.0, 40.0]}, "item": {"item_id": ["y"], "price": [2.0]}}
    config = Config(General, "toy", config_dict={"filter_inter_by_user_or_item": False})
    data = create_dataset(config, inter={"user_id": ["a", "b"], "item_id": ["x", "y"]}, **features)
    joined = data.join(Interaction({"user_id": torch.tensor([2, 1])}))
    assert joined["age"].tolist() == [40.0, 30.0]
    assert "price" not in joined
    assert data[[1]].columns == ["user_id", "item_id", "age", "price"]


def test_a_data_set_describes_itself(dataset: Dataset) -> None:
    assert repr(dataset).splitlines() == [
        "toy: 4 interactions",
        "    2 users with 2.00 interactions each",
        "    3 items with 1.33 interactions each",
        "    66.6667% of all pairs are none",
        "    fields: user_id (token), item_id (token), rating (float), timestamp (float)",
    ]


@pytest.mark.parametrize(
    ("package", "ask", "message"),
    [
        (
            "pyarrow",
            lambda: create_dataset(Config(General, "toy"), inter={"user_id": ["a"], "item_id": ["x"]}),
            "reading data sets needs pyarrow; pip install 'treadle[recsys]'",
        ),
        ("scipy", None, "a sparse matrix needs scipy; pip install 'treadle[recsys]'"),
    ],
)
def test_a_missing_package_is_missed_in_plain_words(
    package: str, ask: Any, message: str, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError) as error:
        (ask or dataset.inter_matrix)()
    assert str(error.value) == message


PROGRAM = """
import sys
import treadle.recsys
loaded = {name.split(".")[0] for name in sys.modules}
print(sorted(loaded & {"pyarrow", "scipy", "pandas", "omegaconf", "hydra", "sklearn"}))
"""


def test_importing_the_door_loads_neither_pyarrow_nor_scipy() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
