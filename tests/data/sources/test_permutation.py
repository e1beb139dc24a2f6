"""Permutations by calculation: every number once, at any place, and no two alike."""

from collections import Counter

import numpy as np
import pytest

from treadle.data.sources.orders import BlockOrder, PermutedOrder
from treadle.data.sources.permutation import permuted


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 16, 17, 100, 1025, 65_537])
def test_each_number_stands_at_one_place(length: int) -> None:
    whole = permuted(np.arange(length), length, "seed")
    assert np.array_equal(np.sort(whole), np.arange(length))


def test_a_place_is_what_it_is_in_the_whole() -> None:
    whole = permuted(np.arange(1_000), 1_000, 7, "epoch", 3)
    places = np.array([999, 0, 0, 412])
    assert np.array_equal(permuted(places, 1_000, 7, "epoch", 3), whole[places])


def test_a_far_place_costs_no_more_than_a_near_one() -> None:
    length = 3 * 10**9
    found = permuted(np.arange(10**9, 10**9 + 1_000), length, 1)
    assert len(set(found.tolist())) == 1_000
    assert found.min() >= 0
    assert found.max() < length
    # Spread over all of it: a thousand draws leave no tenth of the range empty.
    assert set((found * 10 // length).tolist()) == set(range(10))


def test_every_number_comes_first_about_as_often() -> None:
    counts = Counter(int(permuted(np.arange(1), 10, seed)[0]) for seed in range(5_000))
    # The sum of squares for 9 degrees of freedom is below 27.9 but once in a thousand times.
    assert sum((counts[number] - 500) ** 2 / 500 for number in range(10)) < 27.9


def test_neighbours_do_not_stay_neighbours() -> None:
    whole = permuted(np.arange(10_000), 10_000, 5)
    assert abs(np.corrcoef(whole, np.arange(10_000))[0, 1]) < 0.03
    assert abs(np.corrcoef(whole[1:], whole[:-1])[0, 1]) < 0.03


def test_the_permutation_is_that_of_runs_on_disk() -> None:
    order = PermutedOrder(8, 1)
    order.begin(2)
    assert order.slice(0, 8) == RECORDED


RECORDED = [3, 7, 4, 6, 5, 2, 1, 0]


def test_an_order_of_blocks_has_each_sample_once_and_keeps_a_window_together() -> None:
    sizes = [3, 1, 4, 2, 5, 6, 2]
    order = BlockOrder(sizes, seed=4, window=3)
    order.begin(1)
    whole = order.slice(0, 100)
    assert sorted(whole) == list(range(sum(sizes)))
    block = np.repeat(np.arange(7), sizes)[whole]
    # A block is in one window alone: where its last sample is drawn, at most two other blocks were mixed with it.
    for one in range(7):
        places = np.flatnonzero(block == one)
        assert len(np.unique(block[places[0] : places[-1] + 1])) <= 3
    order.begin(2)
    assert order.slice(0, 100) != whole


def test_an_order_of_blocks_is_entered_anywhere() -> None:
    order = BlockOrder([7] * 50, seed=1, window=4)
    order.begin(0)
    whole = order.slice(0, 350)
    assert order.slice(100, 160) == whole[100:160]
    assert order.tensor(349, 400).tolist() == whole[349:]
    assert order.slice(350, 400) == []
