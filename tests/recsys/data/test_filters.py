"""Filters against a brute-force account of what they mean."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from tests.recsys.data.small import General, tokens, toy_config, toy_dataset, write_table
from treadle.errors import ConfigError, DataError
from treadle.recsys import Config, create_dataset

Row = tuple[str, str, float, int]
rows_of = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from("uvwxyz"), st.integers(1, 5), st.integers(0, 9)),
    min_size=1,
    max_size=40,
)
bounds = st.tuples(st.integers(0, 4), st.one_of(st.just("inf"), st.integers(4, 9)))


def table_of(rows: list[Any]) -> dict[str, list[Any]]:
    names = ("user_id", "item_id", "rating", "timestamp")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def filtered(rows: list[Any], **given: Any) -> list[tuple[Any, ...]]:
    """Return the rows that are left, in their order; none if all are gone."""
    config = Config(General, "toy", config_dict=given)
    try:
        dataset = create_dataset(config, inter=table_of(rows))
    except DataError:
        return []
    columns = dataset.inter_feat
    ratings, times = columns["rating"].tolist(), columns["timestamp"].tolist()
    return [(*pair, rating, time) for pair, rating, time in zip(tokens(dataset), ratings, times, strict=True)]


def inside(count: int, low: int, high: Any) -> bool:
    return low <= count and (high == "inf" or count <= int(high))


def slow_core(rows: list[Any], users: tuple[int, Any], items: tuple[int, Any]) -> list[Any]:
    while True:
        by_user, by_item = Counter(row[0] for row in rows), Counter(row[1] for row in rows)
        left = [row for row in rows if inside(by_user[row[0]], *users) and inside(by_item[row[1]], *items)]
        if len(left) == len(rows):
            return left
        rows = left


@given(rows_of, bounds, bounds)
@example_settings(suppress_health_check=[HealthCheck.too_slow])
def test_counts_of_users_and_items_are_brought_into_their_intervals(
    rows: list[Any], users: tuple[int, Any], items: tuple[int, Any]
) -> None:
    intervals = [f"[{low},{high}{')' if high == 'inf' else ']'}" for low, high in (users, items)]
    found = filtered(rows, user_inter_num_interval=intervals[0], item_inter_num_interval=intervals[1])
    assert found == slow_core(rows, users, items)


@given(rows_of, st.sampled_from(["first", "last"]))
def test_of_several_interactions_of_a_pair_one_is_kept_in_the_order_of_time(rows: list[Any], keep: str) -> None:
    ordered = sorted(rows, key=lambda row: row[3])  # stable, as the filter must be
    chosen: dict[tuple[str, str], int] = {}
    for place, row in enumerate(ordered):
        if keep == "last" or row[:2] not in chosen:
            chosen[row[:2]] = place
    assert filtered(rows, rm_dup_inter=keep) == [ordered[place] for place in sorted(chosen.values())]


@given(rows_of, st.integers(1, 5), st.integers(0, 9), st.sets(st.sampled_from("uvwxyz"), min_size=1))
def test_rows_with_other_values_are_left_out(rows: list[Any], least: int, until: int, items: set[str]) -> None:
    wanted = {"rating": f"[{least},inf)", "timestamp": f"[0,{until}]", "item_id": sorted(items)}
    expected = [row for row in rows if row[2] >= least and row[3] <= until and row[1] in items]
    assert filtered(rows, val_interval=wanted) == expected


@given(rows_of, st.sets(st.sampled_from("abcdefg"), min_size=1), st.sets(st.sampled_from("uvwxyz7"), min_size=1))
def test_interactions_of_unknown_users_and_items_are_left_out(
    rows: list[Any], users: set[str], items: set[str]
) -> None:
    known = {"user": {"user_id": sorted(users)}, "item": {"item_id": sorted(items)}}
    expected = [row for row in rows if row[0] in users and row[1] in items]
    config = Config(General, "toy")
    if not expected:
        with pytest.raises(DataError, match=r"no row of toy\.inter is left"):
            create_dataset(config, inter=table_of(rows), **known)
        return
    dataset = create_dataset(config, inter=table_of(rows), **known)
    assert tokens(dataset) == [row[:2] for row in expected]
    assert set(dataset.field2id_token["user_id"]) == {"[PAD]", *users}
    unfiltered = Config(General, "toy", config_dict={"filter_inter_by_user_or_item": False})
    assert len(create_dataset(unfiltered, inter=table_of(rows), **known)) == len(rows)


def test_users_with_too_few_interactions_leave_their_own_table_too(tmp_path: Path) -> None:
    write_table(tmp_path / "toy", "toy.user", ("user_id:token", "age:float"), [("a", 1), ("b", 2), ("c", 3)])
    rows = [("a", "x", 1, 1), ("a", "y", 1, 2), ("b", "x", 1, 3)]
    dataset = toy_dataset(tmp_path, rows, user_inter_num_interval="[2,inf)")
    assert dataset.field2id_token["user_id"].tolist() == ["[PAD]", "a"]
    assert dataset.user_feat is not None
    assert dataset.user_feat["age"].tolist() == [1.0, 1.0]
    everybody = toy_dataset(tmp_path, rows)
    assert everybody.field2id_token["user_id"].tolist() == ["[PAD]", "a", "b", "c"]


def test_rows_without_an_id_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_table(tmp_path / "toy", "toy.item", ("item_id:token", "name:token"), [("x", "n"), (None, "m"), ("y", "o")])
    with caplog.at_level(logging.WARNING):
        dataset = toy_dataset(tmp_path, [("a", "x", 1, 1), (None, "y", 1, 2), ("b", None, 1, 3), ("b", "y", 1, 4)])
    assert tokens(dataset) == [("a", "x"), ("b", "y")]
    assert "1 rows of toy.inter have no user_id and are left out" in caplog.messages
    assert "1 rows of toy.item have no item_id and are left out" in caplog.messages


def test_of_several_rows_with_one_id_the_first_counts(tmp_path: Path) -> None:
    write_table(tmp_path / "toy", "toy.item", ("item_id:token", "name:token"), [("x", "n"), ("y", "o"), ("x", "m")])
    dataset = toy_dataset(tmp_path, [("a", "x", 1, 1), ("a", "y", 1, 2)])
    assert dataset.item_feat is not None
    assert dataset.id2token("name", dataset.item_feat["name"]).tolist() == ["[PAD]", "n", "o"]


def test_doubles_without_times_go_by_the_file_and_a_warning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    config = Config(General, "toy", config_dict={"rm_dup_inter": "last"})
    table = {"user_id": ["a", "b", "a"], "item_id": ["x", "x", "x"], "rating": [1.0, 2.0, 3.0]}
    with caplog.at_level(logging.WARNING):
        dataset = create_dataset(config, inter=table)
    assert dataset.inter_feat["rating"].tolist() == [2.0, 3.0]
    assert caplog.messages == ["rm_dup_inter='last' goes by the order of the file: there is no time field"]


ROWS = [("a", "x", 1, 1), ("a", "y", 5, 2), ("b", "x", 3, 3)]


def test_a_filter_that_leaves_nothing_says_how_many_rows_each_one_left(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        toy_dataset(tmp_path, ROWS, val_interval={"rating": "[3,inf)"}, user_inter_num_interval="[2,inf)")
    assert str(error.value) == (
        "no row of toy.inter is left: 3 interactions are read, 3 after leaving out rows without ids, 3 after "
        "rm_dup_inter=None, 2 after val_interval={'rating': '[3,inf)'}, 2 after filter_inter_by_user_or_item=True, 0 "
        "after user_inter_num_interval='[2,inf)' and item_inter_num_interval='[0,inf)'"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rm_dup_inter": "newest"}, "rm_dup_inter='newest' must be 'first', 'last' or None"),
        (
            {"val_interval": {"ratin": "[1,2]"}},
            "val_interval names the field 'ratin', which is not loaded; did you mean",
        ),
        ({"val_interval": {"rating": "above 3"}}, "val_interval['rating']='above 3': 'above 3' is no interval"),
        ({"val_interval": {"item_id": "x"}}, "val_interval['item_id']='x' must be a list: 'item_id' holds tokens"),
        ({"val_interval": "[1,2]"}, "val_interval=[1, 2] must map fields to intervals"),
        ({"user_inter_num_interval": "5"}, "user_inter_num_interval='5': '5' is no interval"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_an_error(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        toy_dataset(tmp_path, ROWS, **given)
    assert message in str(error.value)


def test_a_field_of_sequences_cannot_be_filtered_by(tmp_path: Path) -> None:
    write_table(tmp_path / "toy", "toy.item", ("item_id:token", "tags:token_seq"), [("x", "p q"), ("y", "p")])
    with pytest.raises(ConfigError, match="'tags' holds sequences; only rows with one value can be filtered by it"):
        toy_dataset(tmp_path, ROWS, val_interval={"tags": ["p"]})


def test_doubles_need_users_and_items(tmp_path: Path) -> None:
    write_table(tmp_path / "toy", "toy.inter", ("site:token", "label:float"), [("a", 1), ("b", 0)])
    config = toy_config(tmp_path, USER_ID_FIELD=None, ITEM_ID_FIELD=None, rm_dup_inter="first")
    with pytest.raises(ConfigError, match="rm_dup_inter needs USER_ID_FIELD and ITEM_ID_FIELD"):
        create_dataset(config)
