"""Batches of one rank: each index exactly once, and together what one process would see."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.data.order import SamplerOrder, SequentialOrder, ShuffledOrder
from treadle.data.sampler import CHUNK, PositionedBatchSampler

EXACT = settings(deadline=None, derandomize=True, database=None, max_examples=150)
RANKS, SIZES, BATCH_SIZES = st.integers(1, 5), st.integers(0, 40), st.integers(1, 9)


def samplers(ranks: int, size: int, batch_size: int, **kwargs: Any) -> list[PositionedBatchSampler]:
    result = [
        PositionedBatchSampler(ShuffledOrder(size, seed=3), batch_size=batch_size, rank=rank, size=ranks, **kwargs)
        for rank in range(ranks)
    ]
    for sampler in result:
        sampler.begin(epoch=2)
    return result


def permutation(size: int) -> list[int]:
    order = ShuffledOrder(size, seed=3)
    order.begin(2)
    return order.slice(0, size)


@EXACT
@given(RANKS, SIZES, BATCH_SIZES)
def test_in_evaluation_every_index_comes_exactly_once_over_all_ranks(ranks: int, size: int, batch_size: int) -> None:
    batches = [list(sampler) for sampler in samplers(ranks, size, batch_size, evaluation=True)]
    assert sorted(index for own in batches for batch in own for index in batch) == list(range(size))
    assert all(batch for own in batches for batch in own)


@EXACT
@given(RANKS, SIZES, BATCH_SIZES)
def test_in_training_every_index_comes_once_besides_the_batches_that_only_keep_step(
    ranks: int, size: int, batch_size: int
) -> None:
    counted: list[int] = []
    for sampler in samplers(ranks, size, batch_size):
        for number, batch in enumerate(sampler):
            if sampler.is_padding(number):
                assert len(batch) == 1
                assert number == len(sampler) - 1
            else:
                counted.extend(batch)
    assert sorted(counted) == list(range(size))


@EXACT
@given(RANKS, SIZES, BATCH_SIZES)
def test_in_training_every_rank_has_as_many_batches(ranks: int, size: int, batch_size: int) -> None:
    lengths = {len(list(sampler)) for sampler in samplers(ranks, size, batch_size)}
    assert lengths == {len(sampler) for sampler in samplers(ranks, size, batch_size)}
    assert lengths == {-(-size // (ranks * batch_size))}


@EXACT
@given(RANKS, SIZES, BATCH_SIZES, st.booleans(), st.booleans())
def test_the_ranks_together_see_the_batches_of_one_process(
    ranks: int, size: int, batch_size: int, evaluation: bool, drop_last: bool
) -> None:
    every = samplers(ranks, size, batch_size, evaluation=evaluation, drop_last=drop_last)
    alone = PositionedBatchSampler(ShuffledOrder(size, seed=3), batch_size=batch_size * ranks, drop_last=drop_last)
    alone.begin(epoch=2)
    for number, whole in enumerate(alone):
        parts = [sampler.batch(number) for sampler in every if number < len(sampler) and not sampler.is_padding(number)]
        assert [index for part in parts for index in part] == whole
    assert max(len(sampler) for sampler in every) == len(alone)


@EXACT
@given(RANKS, SIZES, BATCH_SIZES)
def test_a_last_short_batch_is_spread_as_evenly_as_it_goes(ranks: int, size: int, batch_size: int) -> None:
    every = samplers(ranks, size, batch_size)
    for number in range(len(every[0])):
        shares = [0 if sampler.is_padding(number) else len(sampler.batch(number)) for sampler in every]
        assert max(shares) - min(shares) <= 1


@EXACT
@given(RANKS, SIZES, BATCH_SIZES, st.integers(0, 45), st.booleans())
def test_an_epoch_can_be_entered_at_any_batch(
    ranks: int, size: int, batch_size: int, start: int, evaluation: bool
) -> None:
    for whole, part in zip(
        samplers(ranks, size, batch_size, evaluation=evaluation),
        samplers(ranks, size, batch_size, evaluation=evaluation),
        strict=True,
    ):
        part.begin(epoch=2, batch=start)
        assert list(part) == list(whole)[start:]


@EXACT
@given(RANKS, SIZES, BATCH_SIZES)
def test_dropping_the_last_short_batch_leaves_only_full_ones(ranks: int, size: int, batch_size: int) -> None:
    for sampler in samplers(ranks, size, batch_size, drop_last=True):
        batches = list(sampler)
        assert len(batches) == len(sampler) == size // (batch_size * ranks)
        assert all(len(batch) == batch_size for batch in batches)


@EXACT
@given(RANKS, SIZES, BATCH_SIZES, st.integers(0, 45), st.booleans(), st.booleans())
def test_batches_as_tensors_are_the_same_batches(
    ranks: int, size: int, batch_size: int, start: int, evaluation: bool, drop_last: bool
) -> None:
    for sampler in samplers(ranks, size, batch_size, evaluation=evaluation, drop_last=drop_last):
        sampler.begin(epoch=2, batch=start)
        tensors = sampler.tensors()
        assert tensors is not None
        assert [indices.tolist() for indices in tensors] == list(sampler)


@EXACT
@given(RANKS, SIZES, BATCH_SIZES)
def test_a_batch_lies_at_its_span_of_the_order(ranks: int, size: int, batch_size: int) -> None:
    order = permutation(size)
    for sampler in samplers(ranks, size, batch_size):
        assert [order[slice(*sampler.span(number))] for number in range(len(sampler))] == list(sampler)


def test_more_batches_than_are_drawn_at_once_make_no_difference() -> None:
    size = 2 * CHUNK * 3 + 5
    sampler = PositionedBatchSampler(ShuffledOrder(size, seed=3), batch_size=3)
    sampler.begin(epoch=2)
    expected = permutation(size)
    batches = [expected[start : start + 3] for start in range(0, size, 3)]
    assert list(sampler) == batches
    tensors = sampler.tensors()
    assert tensors is not None
    assert [indices.tolist() for indices in tensors] == batches


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_entries_that_are_batches_already_are_dealt_out_one_by_one(ranks: int) -> None:
    batches = [[0, 1], [2], [3, 4, 5], [6], [7]]
    got = []
    for rank in range(ranks):
        sampler = PositionedBatchSampler(SamplerOrder(batches), batch_size=None, rank=rank, size=ranks)
        sampler.begin(epoch=0)
        got.append([batch for number, batch in enumerate(sampler) if not sampler.is_padding(number)])
    dealt = [own[number] for number in range(5) for own in got if number < len(own)]
    assert dealt == batches


def test_another_epoch_is_another_order_unless_there_is_none() -> None:
    shuffled = PositionedBatchSampler(ShuffledOrder(20, seed=3), batch_size=20)
    sequential = PositionedBatchSampler(SequentialOrder(20), batch_size=20)
    first, second = [], []
    for epoch in (0, 1):
        shuffled.begin(epoch)
        sequential.begin(epoch)
        first.append(list(shuffled))
        second.append(list(sequential))
    assert first[0] != first[1]
    assert second == [[list(range(20))]] * 2
