"""Random numbers by place: the same everywhere, in any order, and as good as others."""

import pytest
import torch

from tests.guards.no_sync import DEVICES
from treadle.recsys.data.sampling import random_below, random_bits, random_unit, row_counters

MASK = 2**64 - 1


def mixed(state: int) -> int:
    """The finaliser of SplitMix64, in Python's integers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def expected(seed: int, counter: int) -> int:
    step = 0x9E3779B97F4A7C15
    key = mixed((seed + step) & MASK)
    return mixed((counter * step + key) & MASK) & (2**63 - 1)


def chi_square(observed: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((observed - expected) ** 2 / expected).sum())


def test_the_reference_of_these_tests_is_splitmix() -> None:
    # The first numbers of SplitMix64 for the seed 1234567, as its implementations agree on them.
    step = 0x9E3779B97F4A7C15
    first = [mixed((1234567 + place * step) & MASK) for place in (1, 2, 3)]
    assert first == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("seed", [0, 1, 2020, -7, 2**63, 2**64 - 1, 10**30])
def test_bits_are_those_of_exact_integer_arithmetic(seed: int) -> None:
    counters = [0, 1, 2, 255, 2**31, 2**40 + 3, 2**62]
    assert random_bits(seed, torch.tensor(counters)).tolist() == [expected(seed, counter) for counter in counters]


@pytest.mark.parametrize("device", DEVICES)
def test_bits_are_the_same_on_every_device(device: str) -> None:
    counters = torch.arange(1000) * 977
    there = random_bits(torch.tensor(5, device=device), counters.to(device))
    assert torch.equal(there.cpu(), random_bits(5, counters))


def test_a_seed_may_be_a_tensor_which_is_left_as_it_is() -> None:
    seed = torch.tensor(-3)
    assert torch.equal(random_bits(seed, torch.arange(10)), random_bits(-3, torch.arange(10)))
    assert seed.item() == -3


def test_counters_are_left_as_they_are() -> None:
    counters = torch.arange(5)
    random_bits(1, counters)
    assert counters.tolist() == [0, 1, 2, 3, 4]


def test_numbers_below_a_bound_are_equally_likely() -> None:
    numbers = random_below(random_bits(11, torch.arange(100_000)), torch.tensor(7))
    counts = torch.bincount(numbers, minlength=7).double()
    assert chi_square(counts, torch.full((7,), 100_000 / 7)) < 16.8  # 99 % of chi-square with 6 degrees of freedom


def test_every_bit_is_set_half_of_the_time() -> None:
    bits = random_bits(3, torch.arange(50_000))
    shares = torch.stack([(bits >> place & 1).double().mean() for place in range(63)])
    assert float((shares - 0.5).abs().max()) < 4 * 0.5 / 50_000**0.5


def test_neighbouring_seeds_and_counters_do_not_agree() -> None:
    table = torch.stack([random_unit(random_bits(seed, torch.arange(2000))) for seed in range(20)])
    correlations = torch.corrcoef(table) - torch.eye(20)
    assert float(correlations.abs().max()) < 5 / 2000**0.5
    shifted = torch.corrcoef(torch.stack([table[0, :-1], table[0, 1:]]))[0, 1]
    assert abs(float(shifted)) < 4 / 2000**0.5


def test_unit_numbers_are_between_zero_and_one_at_both_ends() -> None:
    ends = random_unit(torch.tensor([0, 2**63 - 1]))
    assert 0 < float(ends[0]) < 1e-15
    assert 1 - 1e-15 < float(ends[1]) < 1


def test_rows_and_columns_never_share_a_counter() -> None:
    counters = row_counters(torch.arange(300).unsqueeze(1), torch.arange(300))
    assert len(torch.unique(counters)) == 300 * 300
