"""What counts as the same end of steps and of replays."""

import math

import pytest
import torch
from torch import Tensor

from treadle.errors import CaptureError
from treadle.execution.cuda_graph.replay_check import check_replay, tensors_in

BEFORE = {"weight": torch.tensor([3.0, 4.0]), "count": torch.tensor(1)}
STEPPED = {"weight": torch.tensor([3.0, 5.0]), "count": torch.tensor(3)}


def ended(**changes: Tensor) -> dict[str, Tensor]:
    return {**STEPPED, **changes}


def test_ends_that_are_equal_to_the_bit_agree() -> None:
    assert check_replay(BEFORE, STEPPED, ended(), None)


def test_other_bits_ask_for_the_steps_once_more() -> None:
    assert not check_replay(BEFORE, STEPPED, ended(weight=torch.tensor([3.0, 5.01])), None)


def test_rounding_is_allowed_as_a_part_of_the_way() -> None:
    # The way is the norm over all tensors: the weight went by 1 and the count by 2, the square root of 5; 0.03 of it
    # is 0.067.
    assert check_replay(BEFORE, STEPPED, ended(weight=torch.tensor([3.0, 5.06])), STEPPED)
    with pytest.raises(CaptureError, match=r"they are 0.07 apart after a change of 2.24, and weight differs most"):
        check_replay(BEFORE, STEPPED, ended(weight=torch.tensor([3.0, 5.07])), STEPPED)


def test_steps_that_do_not_repeat_themselves_allow_their_replays_as_much_more() -> None:
    again = ended(weight=torch.tensor([3.0, 5.01]))
    assert check_replay(BEFORE, STEPPED, ended(weight=torch.tensor([3.0, 5.14])), again)


def test_steps_that_end_anywhere_are_refused() -> None:
    again = ended(weight=torch.tensor([3.0, 5.3]))
    with pytest.raises(CaptureError, match="two steps do not end where the same two steps ended before: weight"):
        check_replay(BEFORE, STEPPED, ended(weight=torch.tensor([3.0, 5.1])), again)


def test_what_a_replay_does_not_move_is_named() -> None:
    with pytest.raises(CaptureError, match="a replay leaves weight as it is, which a step changes"):
        check_replay(BEFORE, STEPPED, ended(weight=BEFORE["weight"]), None)


def test_counts_have_to_be_the_same() -> None:
    with pytest.raises(CaptureError, match="two replays of the step do not count as two steps do: count differs"):
        check_replay(BEFORE, STEPPED, ended(count=torch.tensor(2)), None)


def test_numbers_that_are_none_are_the_same_in_the_same_places() -> None:
    table = torch.tensor([1.0, math.nan, math.inf])
    assert check_replay({"table": table}, {"table": table.clone()}, {"table": table.clone()}, None)
    other = torch.tensor([math.nan, 1.0, math.inf])
    with pytest.raises(CaptureError, match="table differs most"):
        check_replay({"table": table}, {"table": table.clone()}, {"table": other}, {"table": table.clone()})


def test_tensors_are_named_by_the_way_to_them() -> None:
    state = {"state": {0: {"step": torch.ones(1)}}, "groups": [{"lr": 0.1, "betas": (torch.ones(1), 0.9)}]}
    assert [name for name, _ in tensors_in(state)] == ["state.0.step", "groups.0.betas.0"]
