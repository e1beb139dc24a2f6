"""The best items of a row: exact, and in one order only, whatever is equal."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.guards.no_sync import DEVICES, no_sync
from treadle.recsys.evaluation import top_items


def expected(scores: Tensor, k: int) -> list[list[int]]:
    return [sorted(range(len(row)), key=lambda place: (-row[place], place))[:k] for row in scores.tolist()]


@given(
    seed=st.integers(0, 2**32), width=st.integers(1, 700), values=st.sampled_from([2, 5, 100, 10**6]), data=st.data()
)
def test_of_equal_scores_the_lower_place_comes_first(seed: int, width: int, values: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, min(width, 12)))
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-values, values, (3, width), generator=generator) / 4
    for kind in (torch.float32, torch.float64):
        places, best, nan_rows = top_items(scores.to(kind), k)
        assert places.tolist() == expected(scores, k)
        assert torch.equal(best, scores.to(kind).gather(1, places))
        assert int(nan_rows) == 0


@pytest.mark.parametrize("width", [40, 641, 704, 5000])
def test_a_list_longer_than_what_is_left_ends_in_minus_infinity(width: int) -> None:
    scores = torch.full((2, width), -torch.inf)
    scores[0, width - 1], scores[0, 3], scores[1, 7] = 1.0, -2.0, 0.0
    places, best, _ = top_items(scores, 3)
    assert places[0, :2].tolist() == [width - 1, 3]
    assert int(places[1, 0]) == 7
    assert best[:, 2].tolist() == [-torch.inf, -torch.inf]


@pytest.mark.parametrize("width", [20, 5000])
def test_zero_and_minus_zero_are_equal(width: int) -> None:
    scores = torch.full((1, width), -1.0)
    scores[0, [3, 5, 9]] = torch.tensor([-0.0, 0.0, -0.0])
    assert top_items(scores, 3)[0].tolist() == [[3, 5, 9]]


@pytest.mark.parametrize("width", [20, 5000])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rows_with_a_nan_are_counted(width: int, sign: float) -> None:
    scores = torch.zeros(4, width)
    scores[1, 2], scores[3, width - 1] = torch.nan, torch.copysign(torch.tensor(torch.nan), torch.tensor(sign))
    assert int(top_items(scores, 2)[2]) == 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [50, 5000])
def test_the_device_is_not_read(device: str, width: int) -> None:
    scores = torch.randint(0, 9, (4, width), generator=torch.Generator().manual_seed(0)).float()
    there = scores.to(device)
    with no_sync(device):
        places, _, _ = top_items(there, 5)
    assert places.cpu().tolist() == expected(scores, 5)
