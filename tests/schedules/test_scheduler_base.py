"""The base classes: whose value is written where, and when."""

import inspect
import json
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch.optim import SGD

from treadle.errors import CheckpointError, ConfigError
from treadle.schedules import CosineSchedule, SchedulerBase, StatefulSchedulerBase


class Counting(SchedulerBase):
    """Every group gets the number of updates."""

    def get_updated_values(self, num_updates: int) -> float:
        return num_updates


class StatefulCounting(StatefulSchedulerBase):
    """Every group gets the number of updates."""

    def get_updated_values(self, num_updates: int) -> float:
        return num_updates


class Milestones(StatefulSchedulerBase):
    """Multiply the current value at some steps: written as a user would, with the base constructor called first."""

    def __init__(self, optimizer: torch.optim.Optimizer, milestones: Iterable[int], field: str = "lr") -> None:
        super().__init__(optimizer, param_group_field=field)
        self.milestones = set(milestones)

    def get_updated_values(self, num_updates: int) -> list[float] | None:
        if num_updates not in self.milestones:
            return None
        return [group[self.param_group_field] / 2 for group in self.optimizer.param_groups]


def two_groups(**settings: Any) -> SGD:
    first, second = torch.zeros(1), torch.zeros(1)
    return SGD([{"params": [first]}, {"params": [second], "lr": 0.25}], lr=1.0, **settings)


def rates(optimizer: torch.optim.Optimizer, field: str = "lr") -> list[float]:
    return [group[field] for group in optimizer.param_groups]


def test_the_value_given_by_the_user_is_kept_in_each_group() -> None:
    optimizer = two_groups()
    scheduler = Counting(optimizer)
    assert rates(optimizer) == rates(optimizer, "initial_lr") == scheduler.base_lr_values == [1.0, 0.25]


def test_a_stateless_scheduler_writes_only_when_told_the_number_of_updates() -> None:
    optimizer = two_groups()
    scheduler = Counting(optimizer)
    assert rates(optimizer) == [1.0, 0.25]
    scheduler.step_update(7)
    assert rates(optimizer) == scheduler.get_last_lr() == [7, 7]


def test_update_k_of_a_stateful_scheduler_runs_at_the_value_for_k() -> None:
    optimizer = two_groups()
    scheduler = StatefulCounting(optimizer)
    seen = []
    for _ in range(4):
        seen.append(rates(optimizer)[0])
        optimizer.step()
        scheduler.step()
    assert seen == [0, 1, 2, 3]
    assert scheduler.num_updates == 4


def test_the_first_value_is_written_after_the_constructor_of_the_subclass_is_through() -> None:
    optimizer = two_groups()
    Milestones(optimizer, [0])
    assert rates(optimizer) == [0.5, 0.125]


def test_the_first_value_is_written_once_however_deep_the_subclass() -> None:
    class Deeper(Milestones):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            super().__init__(optimizer, [0])

    optimizer = two_groups()
    Deeper(optimizer)
    assert rates(optimizer) == [0.5, 0.125]


def test_the_signature_of_a_subclass_stays_readable() -> None:
    assert list(inspect.signature(Milestones).parameters) == ["optimizer", "milestones", "field"]


def test_none_leaves_the_values_as_they_are() -> None:
    optimizer = two_groups()
    scheduler = Milestones(optimizer, [2])
    scheduler.step()
    assert rates(optimizer) == scheduler.get_last_lr() == [1.0, 0.25]
    scheduler.step()
    assert rates(optimizer) == scheduler.get_last_lr() == [0.5, 0.125]


def test_any_field_of_the_groups_can_be_scheduled() -> None:
    optimizer = two_groups(weight_decay=0.5)
    Milestones(optimizer, [1], field="weight_decay").step()
    assert rates(optimizer, "weight_decay") == [0.25, 0.25]
    assert rates(optimizer) == [1.0, 0.25]


@pytest.mark.parametrize("optimizer_first", [True, False])
def test_a_scheduler_that_depends_on_its_past_resumes_in_either_order(optimizer_first: bool) -> None:
    optimizer = two_groups()
    scheduler = Milestones(optimizer, [2, 4])
    for _ in range(3):
        scheduler.step()
    saved = json.loads(json.dumps(scheduler.state_dict()))
    saved_optimizer = optimizer.state_dict()

    resumed_optimizer = two_groups()
    if optimizer_first:
        resumed_optimizer.load_state_dict(saved_optimizer)
    resumed = Milestones(resumed_optimizer, [2, 4])
    resumed.load_state_dict(saved)
    if not optimizer_first:
        resumed_optimizer.load_state_dict(saved_optimizer)
    assert rates(resumed_optimizer) == [0.5, 0.125]
    resumed.step()
    assert rates(resumed_optimizer) == [0.25, 0.0625]
    assert resumed.base_lr_values == [1.0, 0.25]


def test_a_rate_that_is_a_tensor_is_written_in_place() -> None:
    parameter = torch.zeros(1)
    rate = torch.tensor(0.5)
    optimizer = torch.optim.AdamW([parameter], lr=rate, capturable=True)
    scheduler = CosineSchedule(optimizer, total_steps=2)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.25)
    assert optimizer.param_groups[0]["initial_lr"] == 0.5
    assert scheduler.get_last_lr() == pytest.approx([0.25])


def test_a_base_value_left_as_a_tensor_by_another_scheduler_is_read_once() -> None:
    optimizer = two_groups()
    optimizer.param_groups[0]["initial_lr"] = torch.tensor(0.5)
    assert CosineSchedule(optimizer, total_steps=2).base_lr_values == [0.5, 0.25]
    assert isinstance(optimizer.param_groups[0]["initial_lr"], float)


def test_a_group_added_later_joins_with_the_value_it_brings() -> None:
    optimizer = two_groups()
    scheduler = CosineSchedule(optimizer, total_steps=2)
    optimizer.add_param_group({"params": [torch.zeros(1)], "lr": 8.0})
    scheduler.step()
    assert rates(optimizer) == pytest.approx([0.5, 0.125, 4.0])


def test_a_field_that_no_group_has_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        ConfigError, match=r"Counting: the groups of SGD have no field 'momentm'; did you mean 'momentum'"
    ):
        Counting(two_groups(), "momentm")
    with pytest.raises(ConfigError, match=r"no field 'betas'; they have \['dampening', "):
        Counting(two_groups(), "betas")


def test_a_wrong_number_of_values_is_refused() -> None:
    class Three(SchedulerBase):
        def get_updated_values(self, num_updates: int) -> list[float]:
            return [1.0, 2.0, 3.0]

    with pytest.raises(ConfigError, match="Three has 3 values for 2 parameter groups"):
        Three(two_groups()).step_update(1)


def test_a_state_without_its_count_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"this state of StatefulCounting has no 'num_updates', only \['gamma'\]"):
        StatefulCounting(two_groups()).load_state_dict({"gamma": 0.5})
