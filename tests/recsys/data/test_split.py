"""Splits against a brute-force account of what they mean."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.recsys.data.small import INTER, General, tokens, toy_config, toy_dataset, write_table
from treadle.errors import ConfigError, DataError
from treadle.recsys import Config, Dataset, create_dataset
from treadle.recsys.data.split import group_rows, leave_one_out, split_by_ratio, split_by_time

Rows = list[int]
users_of = st.lists(st.integers(0, 5), min_size=1, max_size=60)
shares_of = st.sampled_from(
    [(0.8, 0.1, 0.1), (6, 2, 2), (0.5, 0.25, 0.25), (0.9, 0.1, 0.0), (1, 1, 1), (0.98, 0.01, 0.01)]
)


def by_user(users: list[int]) -> list[Rows]:
    found: dict[int, Rows] = defaultdict(list)
    for row, user in enumerate(users):
        found[user].append(row)
    return [found[user] for user in sorted(found)]


def shares_in_rows(number: int, shares: tuple[float, ...]) -> list[int]:
    """How many of `number` rows each part gets, by the rule that the documentation states."""
    total = sum(shares)
    normal = [share / total for share in shares]
    counts = [int(share * number) for share in normal]
    counts[0] = number - sum(counts[1:])
    for part in (2, 1):
        if counts[0] > 1 and 0 < normal[part] * number < 1:
            counts[part] += 1
            counts[0] -= 1
    return counts


@given(users_of, shares_of)
def test_a_split_by_ratio_takes_shares_of_each_user(users: list[int], shares: tuple[float, ...]) -> None:
    expected: list[Rows] = [[], [], []]
    for rows in by_user(users):
        start = 0
        for part, count in enumerate(shares_in_rows(len(rows), shares)):
            expected[part] += rows[start : start + count]
            start += count
    groups = group_rows(np.array(users), len(users))
    assert [part.tolist() for part in split_by_ratio(groups, shares)] == expected


@given(st.integers(1, 60), shares_of)
def test_a_split_by_ratio_without_groups_takes_shares_of_all(number: int, shares: tuple[float, ...]) -> None:
    parts = split_by_ratio(group_rows(None, number), shares)
    assert [len(part) for part in parts] == shares_in_rows(number, shares)
    assert np.concatenate(parts).tolist() == list(range(number))


@given(users_of, st.sampled_from(["valid_and_test", "valid_only", "test_only"]))
def test_leave_one_out_holds_out_the_last_rows_as_long_as_one_is_left(users: list[int], mode: str) -> None:
    expected: dict[str, Rows] = {"train": [], "valid": [], "test": []}
    names = {"valid_and_test": ["valid", "test"], "valid_only": ["valid"], "test_only": ["test"]}[mode]
    for rows in by_user(users):
        held = min(len(names), len(rows) - 1)
        expected["train"] += rows[: len(rows) - held]
        for name, row in zip(names[len(names) - held :], rows[len(rows) - held :], strict=True):
            expected[name].append(row)
    groups = group_rows(np.array(users), len(users))
    assert [part.tolist() for part in leave_one_out(groups, mode)] == list(expected.values())


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), min_size=1, max_size=50), st.booleans())
def test_a_split_by_time_tests_on_what_comes_after_one_moment(rows: list[tuple[int, int]], grouped: bool) -> None:
    rows = sorted(rows, key=lambda row: row[1])
    users = np.array([user for user, _ in rows]) if grouped else None
    times = np.array([time for _, time in rows])
    moment = np.percentile(times, 90)
    expected: list[Rows] = [[], [], []]
    for own in by_user([user for user, _ in rows]) if grouped else [list(range(len(rows)))]:
        early = [row for row in own if times[row] <= moment]
        trained = int(len(early) * (0.8 / (1 - 0.1)))
        expected[0] += early[:trained]
        expected[1] += early[trained:]
        expected[2] += [row for row in own if times[row] > moment]
    parts = split_by_time(group_rows(users, len(rows)), times, (0.8, 0.1, 0.1))
    assert [part.tolist() for part in parts] == expected


ROWS = [(user, f"i{place}", 1, (place * 7) % 10) for user in "abc" for place in range(10)]


def parts_of(dataset: Dataset) -> list[list[tuple[str, str]]]:
    return [[] if part is None else tokens(part) for part in dataset.build()]


def test_a_random_split_depends_on_the_seed_and_on_nothing_else(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = parts_of(toy_dataset(tmp_path, ROWS))
    torch.manual_seed(2)
    np.random.seed(3)
    state = torch.get_rng_state()
    assert parts_of(toy_dataset(tmp_path, ROWS)) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert parts_of(toy_dataset(tmp_path, ROWS, seed=7)) != first
    assert [len(part) for part in first] == [24, 3, 3]
    everything = [pair for part in first for pair in part]
    assert sorted(everything) == sorted((user, item) for user, item, _, _ in ROWS)


def test_in_the_order_of_time_the_latest_rows_are_held_out(tmp_path: Path) -> None:
    order = {"order": "TO", "split": {"RS": [8, 1, 1]}}
    train, valid, test = parts_of(toy_dataset(tmp_path, ROWS, eval_args=order))
    last = {item: time for _, item, _, time in ROWS}
    assert {last[item] for _, item in test} == {9}
    assert {last[item] for _, item in valid} == {8}
    assert max(last[item] for _, item in train) == 7


def test_the_last_and_the_last_but_one_are_held_out(tmp_path: Path) -> None:
    left = {"order": "TO", "split": {"LS": "valid_and_test"}}
    train, valid, test = parts_of(toy_dataset(tmp_path, ROWS, eval_args=left))
    assert sorted(test) == [("a", "i7"), ("b", "i7"), ("c", "i7")]
    assert sorted(valid) == [("a", "i4"), ("b", "i4"), ("c", "i4")]
    assert len(train) == 24


def test_fact_8_times_that_differ_by_less_than_32_bits_can_tell_are_still_in_order(tmp_path: Path) -> None:
    start = 891717742
    rows = [("a", f"i{place}", 1, start + place) for place in (3, 0, 4, 1, 2)]
    left = {"order": "TO", "split": {"LS": "valid_and_test"}}
    for scaled in (False, True):
        padded = [*rows, ("b", "j", 1, 0), ("b", "k", 1, 1), ("b", "l", 1, 2)]
        parts = parts_of(toy_dataset(tmp_path, padded, eval_args=left, normalize_all=scaled))
        assert ("a", "i4") in parts[2]
        assert ("a", "i3") in parts[1]
        assert [item for user, item in parts[0] if user == "a"] == ["i0", "i1", "i2"]


@pytest.mark.parametrize(
    ("split", "there"),
    [
        ({"LS": "test_only"}, [True, False, True]),
        ({"LS": "valid_only"}, [True, True, False]),
        ({"RS": [0.9, 0, 0.1]}, [True, False, True]),
        ({"RS": [1, 0, 0]}, [True, False, False]),
    ],
)
def test_a_part_that_nobody_wants_is_none(split: dict[str, Any], there: list[bool], tmp_path: Path) -> None:
    parts = toy_dataset(tmp_path, ROWS, eval_args={"split": split}).build()
    assert [part is not None for part in parts] == there


def test_an_empty_split_is_an_error_before_training(tmp_path: Path) -> None:
    rows = [("a", "x", 1, 1), ("b", "y", 1, 2)]
    with pytest.raises(DataError) as error:
        toy_dataset(tmp_path, rows, eval_args={"split": {"LS": "valid_and_test"}}).build()
    assert str(error.value) == (
        "the valid part of 'toy' has no rows: 2 interactions are divided by {'LS': 'valid_and_test'}; give more data, "
        "or other shares"
    )


def test_a_split_by_time_needs_times(tmp_path: Path) -> None:
    for args in ({"order": "TO"}, {"split": {"TS": [8, 1, 1]}}):
        with pytest.raises(
            ConfigError, match="which needs the time of interactions, but TIME_FIELD='timestamp' is not"
        ):
            toy_dataset(tmp_path, ROWS, unload_col={"inter": ["timestamp"]}, eval_args=args).build()


def test_times_that_are_tokens_are_an_error() -> None:
    table = {"user_id": ["a", "a"], "item_id": ["x", "y"], "timestamp:token": ["1", "2"]}
    config = Config(General, "toy", config_dict={"eval_args": {"order": "TO"}})
    with pytest.raises(ConfigError, match="but TIME_FIELD='timestamp' holds token, not numbers"):
        create_dataset(config, inter=table).build()


def test_tables_that_are_split_already_stay_so() -> None:
    parts = [{"user_id": ["a", "b"], "item_id": ["x", "y"]}, {"user_id": ["a"], "item_id": ["z"]}]
    config = Config(General, "toy", config_dict={"user_inter_num_interval": "[5,inf)"})
    dataset = create_dataset(config, inter=parts)
    assert parts_of(dataset) == [[("a", "x"), ("b", "y")], [], [("a", "z")]]
    three = create_dataset(config, inter=[*parts, {"user_id": ["b"], "item_id": ["x"]}])
    assert parts_of(three) == [[("a", "x"), ("b", "y")], [("a", "z")], [("b", "x")]]


def test_files_that_are_split_already_are_read_by_their_names(tmp_path: Path) -> None:
    for name, rows in {"tr": ROWS[:20], "va": ROWS[20:25], "te": ROWS[25:]}.items():
        write_table(tmp_path / "toy", f"toy.{name}.inter", INTER, rows)
    dataset = create_dataset(toy_config(tmp_path, benchmark_filename=["tr", "va", "te"]))
    assert [len(part) for part in parts_of(dataset)] == [20, 5, 5]
    assert dataset.file_size_list == [20, 5, 5]


def test_parts_with_different_columns_or_without_ids_are_an_error() -> None:
    config = Config(General, "toy")
    with pytest.raises(DataError, match="the parts of a data set need the same"):
        create_dataset(
            config, inter=[{"user_id": ["a"], "item_id": ["x"]}, {"user_id": ["a"], "item_id": ["x"], "rating": [1.0]}]
        )
    with pytest.raises(DataError, match="has rows without a user_id; data that is split already is not filtered"):
        create_dataset(config, inter=[{"user_id": [None, "a"], "item_id": ["x", "y"]}] * 2)
    with pytest.raises(ConfigError, match="inter has 4 parts; give two, train and test, or three"):
        create_dataset(config, inter=[{"user_id": ["a"], "item_id": ["x"]}] * 4)


def test_columns_that_only_the_split_needs_can_be_left_out_of_the_parts(tmp_path: Path) -> None:
    dataset = toy_dataset(tmp_path, ROWS, unused_col={"inter": ["timestamp"]}, eval_args={"order": "TO"})
    assert "timestamp" in dataset.inter_feat
    for part in dataset.build():
        assert part is not None
        assert part.inter_feat.columns == ["user_id", "item_id", "rating"]
        assert "timestamp" not in part.field2type
    with pytest.raises(ConfigError, match="unused_col names 'time' of 'inter', which has"):
        toy_dataset(tmp_path, ROWS, unused_col={"inter": ["time"]}).build()


def test_moments_divide_all_users_alike(tmp_path: Path) -> None:
    moments = {"split": {"TP": [6, 8]}}
    train, valid, test = parts_of(toy_dataset(tmp_path, ROWS, eval_args=moments))
    time = {item: time for _, item, _, time in ROWS}
    assert [sorted({time[item] for _, item in part}) for part in (train, valid, test)] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7],
        [8, 9],
    ]
    assert [len(part) for part in (train, valid, test)] == [18, 6, 6]
    train, valid, test = parts_of(toy_dataset(tmp_path, ROWS, eval_args={"split": {"TP": [8, 8]}}))
    assert [len(part) for part in (train, valid, test)] == [24, 0, 6]


@pytest.mark.parametrize(
    ("scaled", "rest"),
    [
        (False, r"stands for \(8.0, 20.0\), and the times of 'toy' go from 0 to 9; choose moments between them$"),
        (True, r".* go from 0 to 1 \(normalize_all and normalize_field bring times to 0..1\); choose moments between"),
    ],
)
def test_moments_that_leave_a_part_empty_are_refused(tmp_path: Path, scaled: bool, rest: str) -> None:
    with pytest.raises(ConfigError, match=rf"^eval_args.split.TP=\[8, 20\] {rest}"):
        parts_of(toy_dataset(tmp_path, ROWS, eval_args={"split": {"TP": [8, 20]}}, normalize_all=scaled))


@pytest.mark.parametrize(("how", "place"), [("CU", 0), ("CI", 1)])
def test_whole_users_or_items_are_held_out(tmp_path: Path, how: str, place: int) -> None:
    rows = [(f"u{user}", f"i{item}", 1, 0) for user in range(10) for item in range(10) if (user + item) % 3]
    given: dict[str, Any] = {"eval_args": {"split": {how: [0.6, 0.2, 0.2]}}, "cold_users": "keep"}
    parts = parts_of(toy_dataset(tmp_path, rows, **given))
    held = [{pair[place] for pair in part} for part in parts]
    assert [len(one) for one in held] == [6, 2, 2]
    assert len(set.union(*held)) == 10
    assert sorted(pair for part in parts for pair in part) == sorted((user, item) for user, item, _, _ in rows)
    assert parts_of(toy_dataset(tmp_path, rows, **given)) == parts
    assert parts_of(toy_dataset(tmp_path, rows, split_seed=3, **given)) != parts
