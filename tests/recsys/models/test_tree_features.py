"""What trees see of a row."""

from typing import Any

import numpy as np
import pytest
import torch

from treadle.errors import DataError
from treadle.recsys import Config, Dataset, create_dataset
from treadle.recsys.models.boosting import TreeFeatures

TABLE: dict[str, Any] = {
    "age:float": [1.5, None, 3.5],
    "colour:token": ["red", None, "blue"],
    "tags:token_seq": ["a b", "c", "a"],
    "sizes:float_seq": ["1 2", "3 4", "5 6"],
    "label:float": [1.0, 0.0, 1.0],
}


def data(table: dict[str, Any] = TABLE, **given: Any) -> Dataset:
    ids = {"USER_ID_FIELD": None, "ITEM_ID_FIELD": None, "TIME_FIELD": None}
    return create_dataset(Config("LightGBM", "rows", config_dict={**ids, **given}), inter=table)


def test_numbers_stay_tokens_are_categories_and_several_values_are_columns() -> None:
    found = TreeFeatures(data(), "label")
    assert found.names == ["age", "colour", "tags_1", "tags_2", "tags_3", "sizes_0", "sizes_1"]
    assert found.categories == [1]
    rows = data()[torch.arange(3)]
    expected = [[1.5, 1, 1, 1, 0, 1, 2], [2.5, np.nan, 0, 0, 1, 3, 4], [3.5, 2, 1, 0, 0, 5, 6]]
    np.testing.assert_array_equal(found.matrix(rows), np.array(expected, np.float32))


def test_tokens_become_columns_where_that_is_wanted() -> None:
    found = TreeFeatures(data({"colour": ["red", None, "blue"], "label": [1.0, 0.0, 1.0]}), "label", one_hot=True)
    assert (found.names, found.categories) == (["colour_1", "colour_2"], [])
    rows = data({"colour": ["red", None, "blue"], "label": [1.0, 0.0, 1.0]})[torch.arange(3)]
    np.testing.assert_array_equal(found.matrix(rows), [[1, 0], [0, 0], [0, 1]])


def test_a_number_that_other_models_embed_is_a_number_still() -> None:
    table = {"age": [1.0, 2.0, 9.0], "label": [1.0, 0.0, 1.0]}
    plain = data(table, numerical_features=["age"])
    assert TreeFeatures(plain, "label").matrix(plain[torch.arange(3)]).ravel().tolist() == [1.0, 2.0, 9.0]
    cut = data(table, numerical_features=["age"], discretization={"age": {"method": "ED", "bucket": 2}})
    assert TreeFeatures(cut, "label").matrix(cut[torch.arange(3)]).ravel().tolist() == [1.0, 1.0, 2.0]


def test_times_keep_all_their_digits() -> None:
    table = {"timestamp": [1_700_000_001.0, 1_700_000_002.0], "label": [1.0, 0.0]}
    times = data(table, TIME_FIELD="timestamp")
    matrix = TreeFeatures(times, "label").matrix(times[torch.arange(2)])
    assert matrix.dtype == np.float64
    assert matrix.ravel().tolist() == [1_700_000_001.0, 1_700_000_002.0]


def test_a_field_of_too_many_tokens_is_no_field_of_columns() -> None:
    many = {"tags:token_seq": [f"a{row} b{row}" for row in range(600)], "label:float": [1.0] * 600}
    with pytest.raises(DataError, match=r"'tags' has 1200 tokens, .* 1000 are the most: leave it out with unload_col"):
        TreeFeatures(data(many), "label")


def test_data_without_fields_is_refused() -> None:
    with pytest.raises(DataError, match="'rows' has no field but the label 'label'; see load_col"):
        TreeFeatures(data({"label": [1.0, 0.0]}), "label")
