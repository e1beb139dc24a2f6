"""Orders that can be entered anywhere, and drawn again."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

from treadle.data.order import SamplerOrder, SequentialOrder, ShuffledOrder
from treadle.data.random_state import RandomState

EXACT = settings(deadline=None, derandomize=True, database=None)


@EXACT
@given(size=st.integers(0, 50), start=st.integers(0, 60), stop=st.integers(0, 60))
def test_a_sequential_order_is_the_indices_as_they_come(size: int, start: int, stop: int) -> None:
    order = SequentialOrder(size)
    order.begin(5)
    assert len(order) == size
    assert order.slice(start, stop) == list(range(size))[start:stop]


@EXACT
@given(size=st.integers(0, 50), seed=st.integers(0, 2**40), epoch=st.integers(0, 100))
def test_a_shuffled_order_is_a_permutation_that_seed_and_epoch_decide(size: int, seed: int, epoch: int) -> None:
    order, again = ShuffledOrder(size, seed), ShuffledOrder(size, seed)
    order.begin(epoch)
    again.begin(epoch + 1)
    again.begin(epoch)
    whole = order.slice(0, size)
    assert sorted(whole) == list(range(size))
    assert whole == again.slice(0, size) == [*order.slice(0, size // 2), *order.slice(size // 2, size)]


def test_a_shuffled_order_differs_between_epochs_and_seeds_that_are_near() -> None:
    seen = set()
    for seed in (0, 1, 2**32, 2**33):
        for epoch in (0, 1, 2):
            order = ShuffledOrder(100, seed)
            order.begin(epoch)
            seen.add(tuple(order.slice(0, 100)))
    assert len(seen) == 12


def test_the_order_of_a_seed_and_an_epoch_is_that_of_runs_on_disk() -> None:
    order = ShuffledOrder(8, 1)
    order.begin(2)
    assert order.slice(0, 8) == [7, 0, 2, 3, 1, 4, 5, 6]


def test_a_shuffled_order_touches_no_generator() -> None:
    before = torch.get_rng_state()
    ShuffledOrder(10, 0).begin(3)
    assert torch.equal(torch.get_rng_state(), before)


@EXACT
@given(size=st.integers(0, 50), start=st.integers(0, 60), stop=st.integers(0, 60), epoch=st.integers(0, 3))
def test_indices_as_a_tensor_are_the_same_indices(size: int, start: int, stop: int, epoch: int) -> None:
    drawn = RandomSampler(range(size), generator=torch.Generator().manual_seed(epoch)) if size else []
    for order in (SequentialOrder(size), ShuffledOrder(size, 3), SamplerOrder(drawn)):
        order.begin(epoch)
        tensor = order.tensor(start, stop)
        if tensor is None:
            assert not size
        else:
            assert tensor.tolist() == order.slice(start, stop)


@pytest.mark.parametrize("indices", [["a", "b"], [[0, 1], [2]], [0, -1], [0.5]])
def test_a_sampler_of_anything_else_than_whole_numbers_from_0_has_no_tensor(indices: list[Any]) -> None:
    order = SamplerOrder(indices)
    order.begin(0)
    assert order.tensor(0, 1) is None


def test_the_tensor_of_a_sampler_is_that_of_the_epoch() -> None:
    order = SamplerOrder(RandomSampler(range(50), generator=torch.Generator().manual_seed(8)))
    for epoch in (0, 1):
        order.begin(epoch)
        tensor = order.tensor(0, 50)
        assert tensor is not None
        assert tensor.tolist() == order.slice(0, 50)
        order.finish()


class Everybodys:
    """A sampler that draws from every generator there is."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[int]:
        yield from (random.randrange(1000), int(np.random.randint(1000)), int(torch.randint(1000, ())))

    def __len__(self) -> int:
        return 3


def test_the_order_of_a_sampler_is_drawn_anew_each_epoch() -> None:
    sampler = Everybodys()
    order = SamplerOrder(sampler)
    assert len(order) == 3
    order.begin(0)
    first = order.slice(0, 3)
    order.finish()
    order.begin(1)
    assert order.slice(0, 3) != first
    assert sampler.epochs == [0, 1]


def test_the_order_of_a_sampler_can_be_drawn_again_and_leaves_the_generators_where_they_are() -> None:
    order = SamplerOrder(Everybodys())
    order.begin(0)
    first, state = order.slice(0, 3), order.state_dict()
    torch.rand(3), random.random(), np.random.rand()
    other = SamplerOrder(Everybodys())
    other.load_state_dict(state)
    expected = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    other.begin(0)
    assert other.slice(0, 3) == first
    assert other.slice(1, 2) == first[1:2]
    assert torch.equal(torch.get_rng_state(), expected[0])
    assert random.getstate() == expected[1]
    assert np.random.get_state()[1].tolist() == expected[2]


def test_beside_a_run_the_order_under_way_is_the_samplers_and_any_other_is_drawn_apart() -> None:
    order = SamplerOrder(RandomSampler(range(50), generator=torch.Generator().manual_seed(8)))
    order.begin(0)
    under_way = order.slice(0, 50)
    assert order.aside(0, seed=3).slice(0, 50) == under_way
    assert order.aside(1, seed=3).slice(0, 50) != under_way
    order.finish()
    assert order.aside(0, seed=3).slice(0, 50) != under_way


def test_a_generator_of_the_samplers_own_is_remembered_too() -> None:
    def make() -> tuple[SamplerOrder, torch.Generator]:
        generator = torch.Generator().manual_seed(8)
        return SamplerOrder(RandomSampler(range(50), generator=generator), generator), generator

    order, generator = make()
    torch.rand(4, generator=generator)
    order.begin(0)
    first = order.slice(0, 50)
    other, _ = make()
    other.load_state_dict(order.state_dict())
    other.begin(0)
    assert other.slice(0, 50) == first


def test_indices_may_be_anything_and_may_come_back() -> None:
    order = SamplerOrder(["a", ("b", 2), "a"])
    order.begin(0)
    assert order.slice(0, 9) == ["a", ("b", 2), "a"]
    weighted = SamplerOrder(WeightedRandomSampler([0.0, 1.0], num_samples=4))
    weighted.begin(0)
    assert weighted.slice(0, 4) == [1, 1, 1, 1]


def test_the_states_of_an_order_are_plain_data_that_can_be_restored() -> None:
    order = SamplerOrder(Everybodys())
    order.begin(0)
    state: Any = order.state_dict()["start"]
    RandomState().load_state_dict(state)
    assert list(Everybodys()) == order.slice(0, 3)


def test_a_slice_before_the_beginning_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match=r"begin\(\) comes first"):
        SamplerOrder([1]).slice(0, 1)


@pytest.mark.parametrize("own", [True, False])
def test_an_order_as_torchs_is_that_of_a_hand_written_loop_and_is_drawn_again_after_a_resume(own: bool) -> None:
    def loader() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(3) if own else None
        return DataLoader(TensorDataset(torch.arange(20)), batch_size=20, shuffle=True, generator=generator)

    def make() -> SamplerOrder:
        source = loader()
        return SamplerOrder(source.sampler, source.generator, as_torch=True)

    torch.manual_seed(4)
    wanted = [batch[0].tolist() for source in [loader()] for _ in range(3) for batch in source]
    torch.manual_seed(4)
    order = make()
    found, states = [], []
    for epoch in range(3):
        order.begin(epoch)
        found.append(order.slice(0, 20))
        states.append((order.state_dict(), torch.get_rng_state()))
        order.finish()
    assert found == wanted
    resumed = make()
    resumed.load_state_dict(states[1][0])
    torch.set_rng_state(states[1][1])
    for epoch in (1, 2):
        resumed.begin(epoch)
        assert resumed.slice(0, 20) == wanted[epoch]
        resumed.finish()


def test_an_order_saved_before_it_followed_torch_stays_as_it_was() -> None:
    def make(**options: bool) -> SamplerOrder:
        generator = torch.Generator().manual_seed(3)
        return SamplerOrder(RandomSampler(range(50), generator=generator), generator, **options)

    before = make()
    before.begin(0)
    resumed = make(as_torch=True)
    resumed.load_state_dict(before.state_dict())
    resumed.begin(0)
    for order in (before, resumed):
        order.finish()
        order.begin(1)
    assert resumed.slice(0, 50) == before.slice(0, 50)
