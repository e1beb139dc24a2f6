"""From tokens and numbers to ids and features."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.recsys.data.small import General, toy_dataset, write_table
from treadle.errors import ConfigError, DataError
from treadle.recsys import Config, create_dataset
from treadle.recsys.data.tables.columns import Column, runs
from treadle.recsys.data.tables.id_map import first_appearances
from treadle.recsys.data.tables.pipeline import embed_number, scale
from treadle.recsys.enums import FeatureType

ROWS = [("a", "x", 1, 10), ("b", "y", 5, 30), ("a", "z", 3, 20)]


@given(st.lists(st.integers(-1, 6), max_size=30))
def test_ids_are_given_in_the_order_of_first_appearance(codes: list[int]) -> None:
    expected = list(dict.fromkeys(code for code in codes if code >= 0))
    assert first_appearances(np.array(codes, np.int64), 7).tolist() == expected


@given(st.lists(st.lists(st.integers(1, 9), max_size=4), max_size=8), st.data())
def test_sequences_are_taken_shortened_and_padded_row_by_row(rows: list[list[int]], data: st.DataObject) -> None:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    column = Column(FeatureType.TOKEN_SEQ, np.array([value for row in rows for value in row], np.int64), offsets)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)) if rows else []
    most = data.draw(st.integers(0, 4))
    taken = column.take(np.array(chosen, np.int64)).shortened(most)
    expected = [rows[place][:most] for place in chosen]
    width = max(map(len, expected), default=0)
    assert taken.padded(np.int64).tolist() == [row + [0] * (width - len(row)) for row in expected]
    assert taken.lengths.tolist() == [len(row) for row in expected]


def test_no_runs_have_no_places() -> None:
    assert runs(np.array([], int), np.array([], int)).tolist() == []


def test_fields_called_another_name_for_an_id_share_its_numbers(tmp_path: Path) -> None:
    write_table(tmp_path / "toy", "toy.user", ("user_id:token", "friend:token"), [("a", "c"), ("b", "a")])
    write_table(tmp_path / "toy", "toy.item", ("item_id:token", "like:token_seq"), [("x", "z w"), ("y", "x")])
    dataset = toy_dataset(
        tmp_path, ROWS, alias_of_user_id=["friend"], alias_of_item_id=["like"], filter_inter_by_user_or_item=False
    )
    assert dataset.field2id_token["friend"].tolist() == ["[PAD]", "a", "b", "c"]
    assert dataset.user_feat is not None
    assert dataset.user_feat["friend"].tolist() == [0, 3, 1, 0]
    assert dataset.item_feat is not None
    assert dataset.item_feat["like"].tolist() == [[0, 0], [3, 4], [1, 0], [0, 0], [0, 0]]
    assert dataset.user_num == 4
    assert dataset.field2token_id["like"]["w"] == dataset.token2id("item_id", "w") == 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alias_of_user_id": ["frend"]}, "alias_of_user_id names the field 'frend', which is not loaded"),
        ({"alias_of_user_id": ["rating"]}, "alias_of_user_id names the field 'rating', which holds numbers"),
        (
            {"alias_of_user_id": ["item_id"]},
            "alias_of_item_id and alias_of_user_id both have the field 'item_id'; it can be in one only",
        ),
        ({"threshold": {"rating": 3, "timestamp": 1}}, "must name one field, such as {'rating': 4}"),
        ({"threshold": {"ratng": 3}}, "the field 'ratng', which is not loaded from toy.inter; did you mean"),
        ({"threshold": {"item_id": 3}}, "threshold names the field 'item_id', which holds no numbers"),
        ({"normalize_field": ["item_id"]}, "normalize_field names 'item_id', which is no loaded field of numbers"),
        (
            {"normalize_field": ["rating"], "normalize_all": True},
            "normalize_field and normalize_all=True cannot both be set; leave one out",
        ),
        ({"numerical_features": ["price"]}, "numerical_features names 'price', which is no loaded field of numbers"),
        (
            {"discretization": {"rating": {"method": "ED", "bucket": 2}}},
            "discretization names 'rating', which is not in numerical_features; add it there",
        ),
        (
            {"numerical_features": ["rating"], "discretization": {"rating": {"method": "XX"}}},
            "discretization['rating'] has the method 'XX'; there are ['ED', 'LD']",
        ),
        (
            {"numerical_features": ["rating"], "discretization": {"rating": {"method": "ED"}}},
            "discretization['rating'] needs the number of buckets: {'method': 'ED', 'bucket': 10}",
        ),
        ({"preload_weight": {"item_id": "vector"}}, "preload_weight: no loaded table has both 'item_id' and 'vector'"),
        ({"preload_weight": {"rating": "timestamp"}}, "preload_weight: 'rating' must hold one token a row"),
    ],
)
def test_settings_of_features_that_cannot_be_meant_are_refused(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        toy_dataset(tmp_path, ROWS, **given)
    assert message in str(error.value)


def test_features_have_a_row_for_each_id_and_nothing_missing(tmp_path: Path) -> None:
    header = ("item_id:token", "price:float", "kind:token", "tags:token_seq")
    write_table(tmp_path / "toy", "toy.item", header, [("z", 6, "p", "t"), ("x", None, None, "s t"), ("q", 3, "p", "")])
    dataset = toy_dataset(tmp_path, ROWS, filter_inter_by_user_or_item=False)
    features = dataset.get_item_feature()
    assert dataset.field2id_token["item_id"].tolist() == ["[PAD]", "x", "y", "z", "q"]
    assert features["item_id"].tolist() == [0, 1, 2, 3, 4]
    assert features["price"].tolist() == [4.5, 4.5, 4.5, 6.0, 3.0]
    assert features["kind"].tolist() == [0, 0, 0, 1, 1]
    assert features["tags"].tolist() == [[0, 0], [2, 1], [0, 0], [1, 0], [0, 0]]
    joined = dataset[torch.tensor([2, 0])]
    assert joined["price"].tolist() == [6.0, 4.5]
    assert joined["tags"].tolist() == [[1, 0], [2, 1]]
    assert dataset.get_user_feature()["user_id"].tolist() == [0, 1, 2]


def test_a_field_without_any_value_is_an_error(tmp_path: Path) -> None:
    write_table(tmp_path / "toy", "toy.item", ("item_id:token", "price:float"), [("x", None), ("y", None), ("z", None)])
    with pytest.raises(
        DataError, match=r"field 'price' of toy\.item has no value in any row; leave it out of load_col"
    ):
        toy_dataset(tmp_path, ROWS)


def test_a_threshold_makes_labels_and_drops_its_field(tmp_path: Path) -> None:
    dataset = toy_dataset(tmp_path, ROWS, threshold={"rating": 3}, normalize_all=True)
    assert dataset.inter_feat["label"].tolist() == [0.0, 1.0, 1.0]
    assert "rating" not in dataset.field2type
    assert dataset.field2type["label"] is FeatureType.FLOAT


def test_labels_that_are_all_zero_stay_zero_when_numbers_are_scaled(tmp_path: Path) -> None:
    dataset = toy_dataset(tmp_path, ROWS, threshold={"rating": 9}, normalize_all=True)
    assert dataset.inter_feat["label"].tolist() == [0.0, 0.0, 0.0]


def test_numbers_are_scaled_to_between_zero_and_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = toy_dataset(tmp_path, ROWS, normalize_all=True)
    assert dataset.inter_feat["rating"].tolist() == [0.0, 1.0, 0.5]
    assert dataset.inter_feat["timestamp"].tolist() == [0.0, 1.0, 0.5]
    assert dataset.inter_feat["timestamp"].dtype == torch.float64
    one = toy_dataset(tmp_path, ROWS, normalize_field=["rating"])
    assert one.inter_feat["timestamp"].tolist() == [10, 30, 20]
    with caplog.at_level(logging.WARNING):
        same = toy_dataset(tmp_path, [("a", "x", 4, 1), ("a", "y", 4, 2)], normalize_field=["rating"])
    assert same.inter_feat["rating"].tolist() == [1.0, 1.0]
    assert caplog.messages == ["all values of 'rating' are the same; scaled, they are 1"]


def test_scaled_times_stay_in_their_order_where_32_bits_would_mix_them_up() -> None:
    times = np.array([881250949, 881250950, 881250951, 893286638], np.int64)
    column = Column(FeatureType.FLOAT, times)
    scale(column, "timestamp")
    assert (np.diff(column.values) > 0).all()
    assert not (np.diff(times.astype(np.float32)) > 0).all()


def test_embedded_numbers_are_pairs_of_a_value_and_a_bucket(tmp_path: Path) -> None:
    given = {"numerical_features": ["rating", "timestamp"]}
    dataset = toy_dataset(tmp_path, ROWS, **given, discretization={"rating": {"method": "ED", "bucket": 4}})
    assert dataset.inter_feat["rating"].tolist() == [[1, 1], [1, 4], [1, 2]]
    assert dataset.inter_feat["timestamp"].tolist() == [[10, 1], [30, 1], [20, 1]]
    assert (dataset.num("rating"), dataset.num("timestamp"), dataset.num("user_id")) == (5, 2, 3)
    assert dataset.field2bucketnum == {"rating": 5, "timestamp": 2}


def test_logarithmic_buckets_are_numbered_from_zero() -> None:
    column = Column(FeatureType.FLOAT, np.array([1.0, 2.0, 20.0, 21.0, 400.0]))
    # Above 2 the bucket is floor(ln(x) ** 2 + 1): 9, 10 and 36; then they are numbered by size.
    assert embed_number(column, "x", {"method": "LD"}) == 5
    assert column.values[:, 1].tolist() == [0, 1, 2, 3, 4]


def test_equal_buckets_hold_equal_stretches_and_the_largest_value_is_in_the_last() -> None:
    column = Column(FeatureType.FLOAT, np.array([0.0, 24.9, 25.1, 99.0, 100.0]))
    assert embed_number(column, "x", {"method": "ED", "bucket": 4}) == 5
    assert column.values[:, 1].tolist() == [1, 1, 2, 4, 4]
    same = Column(FeatureType.FLOAT, np.array([1e12, 1e12]))
    embed_number(same, "x", {"method": "ED", "bucket": 3})
    assert same.values[:, 1].tolist() == [3, 3]


def test_sequences_of_embedded_numbers_are_pairs_too() -> None:
    item = {"item_id": ["x", "y"], "sizes": [[1.0, 3.0], [2.0]]}
    config = Config(General, "toy", config_dict={"numerical_features": ["sizes"]})
    dataset = create_dataset(config, inter={"user_id": ["a", "a"], "item_id": ["x", "y"]}, item=item)
    assert dataset.item_feat is not None
    assert dataset.item_feat["sizes"].tolist() == [[[0, 0], [0, 0]], [[1, 1], [3, 1]], [[2, 1], [0, 0]]]


def test_infinite_numbers_cannot_be_scaled(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        toy_dataset(tmp_path, [("a", "x", "inf", 1), ("a", "y", 4, 2)], normalize_field=["rating"])
    assert (
        str(error.value)
        == "the field 'rating' has infinite values, which cannot be scaled to 0..1; see normalize_field"
    )
