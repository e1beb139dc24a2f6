"""The things whose state makes up a run, by name."""

from typing import Any

import pytest
import torch
from torch import nn

from treadle.checkpoint.tracked import Stateful, Tracked
from treadle.errors import CheckpointError, ConfigError


class Counter:
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def tracked(**objects: Any) -> Tracked:
    result = Tracked()
    result.add(**objects)
    return result


def test_the_state_of_everything_tracked_is_taken_and_given_back_by_name() -> None:
    state = tracked(first=Counter(1), second=Counter(2)).state_dict()
    assert state == {"first": {"count": 1}, "second": {"count": 2}}
    first, second = Counter(), Counter()
    tracked(second=second, first=first).load_state_dict(state)
    assert (first.count, second.count) == (1, 2)


def test_torchs_own_objects_are_stateful() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    everything = tracked(model=model, optimizer=optimizer)
    assert everything.names() == ["model", "optimizer"]
    assert isinstance(model, Stateful)


def test_a_name_is_given_to_the_newest_and_can_be_taken_away() -> None:
    everything = tracked(one=Counter(1), two=Counter(2))
    everything.add(one=Counter(3))
    everything.remove("two")
    everything.remove("never there")
    assert everything.state_dict() == {"one": {"count": 3}}


def test_only_what_is_wanted_can_be_taken() -> None:
    everything = tracked(local=Counter(1), shared=Counter(2))
    assert everything.state_dict(lambda name: name == "local") == {"local": {"count": 1}}


@pytest.mark.parametrize("value", [3, "text", None, object(), dict])
def test_what_has_no_state_cannot_be_tracked(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        tracked(thing=value)
    assert str(caught.value) == (
        f"track(thing=...): a {type(value).__name__} has no state_dict and load_state_dict; "
        "give it both, or keep it out of the checkpoint"
    )


def test_names_that_do_not_match_are_refused_before_anything_is_loaded() -> None:
    here, other = Counter(5), Counter(6)
    with pytest.raises(CheckpointError, match=r"it lacks \['new'\] and has \['old'\] besides; build the trainer as it"):
        tracked(here=here, new=other).load_state_dict({"here": {"count": 1}, "old": {"count": 2}})
    assert (here.count, other.count) == (5, 6)


def test_optional_names_may_be_missing_on_either_side() -> None:
    here, extra = Counter(5), Counter(6)
    everything = tracked(here=here, extra=extra)
    everything.load_state_dict({"here": {"count": 1}}, optional=("extra",))
    assert (here.count, extra.count) == (1, 6)
    only = tracked(here=here)
    only.load_state_dict({"here": {"count": 2}, "extra": {"count": 9}}, optional=("extra",))
    assert here.count == 2
