"""Seeds derived from other numbers."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.data.seeds import draw_seed, fold_seed, seeds_below

EXACT = settings(deadline=None, derandomize=True, database=None)
PARTS = st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=4)


@EXACT
@given(PARTS)
def test_a_folded_seed_is_one_that_every_generator_takes(parts: list[int]) -> None:
    seed = fold_seed(*parts)
    assert seed == fold_seed(*parts)
    assert 0 <= seed < 2**32


@EXACT
@given(PARTS, st.integers(0, 3), st.integers(0, 69))
def test_a_folded_seed_depends_on_every_bit_of_every_part(parts: list[int], place: int, bit: int) -> None:
    other = list(parts)
    other[place % len(parts)] ^= 1 << bit
    assert fold_seed(*other) != fold_seed(*parts)


def test_the_same_numbers_in_other_places_give_another_seed() -> None:
    seeds = {fold_seed(1, 23), fold_seed(12, 3), fold_seed(123), fold_seed(23, 1), fold_seed(1, 23, 0)}
    assert len(seeds) == 5


@EXACT
@given(PARTS, st.one_of(st.integers(), st.text(), st.lists(st.integers())))
def test_one_more_part_can_be_folded_in_at_a_lower_price(parts: list[int], part: object) -> None:
    assert seeds_below(*parts)(part) == fold_seed(*parts, part)


def test_a_drawn_seed_follows_torchs_generator_and_moves_it_on() -> None:
    torch.manual_seed(1)
    first, second = draw_seed(), draw_seed()
    torch.manual_seed(1)
    assert draw_seed() == first != second
