"""Fitting a saved schedule to a run that may have become longer."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from treadle.errors import CheckpointError
from treadle.schedules import ConstantSchedule, CosineSchedule, LinearSchedule, WSDLrScheduler
from treadle.schedules.extend import HeldSchedule, StretchedSchedule, fit_schedule, schedule_settings

Build = Callable[[Optimizer], Any]


def optimizer(lr: float = 1.0) -> Optimizer:
    return SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)


def rates(scheduler: Any, count: int) -> list[float]:
    """Return the rates of the next `count` updates, moving the schedule on."""
    found = []
    for _ in range(count):
        found.append(float(scheduler.optimizer.param_groups[0]["lr"]))
        scheduler.optimizer.step()
        scheduler.step()
    return found


def after(build: Build, steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the states of a schedule, and of its optimizer, after so many steps."""
    scheduler = build(optimizer())
    rates(scheduler, steps)
    return scheduler.state_dict(), scheduler.optimizer.state_dict()


def resumed(build: Build, saved: tuple[dict[str, Any], dict[str, Any]], **facts: Any) -> Any:
    """Build a schedule as a new process does, fit it, and load what was saved, twice as a run does."""
    fitted = fit_schedule(build(optimizer()), saved[0], **facts)
    for _ in range(2):
        fitted.optimizer.load_state_dict(saved[1])
        fitted.load_state_dict(saved[0])
    return fitted


def facts(old: int, new: int, taken: int, extend: str | None = None) -> dict[str, Any]:
    return {"saved_steps": old, "steps": new, "taken": taken, "limit": old, "extend": extend}


def cosine(total: int) -> Build:
    return partial(CosineAnnealingLR, T_max=total)


def one_cycle(total: int) -> Build:
    return partial(OneCycleLR, max_lr=2.0, total_steps=total)


def linear(total: int) -> Build:
    return partial(LinearSchedule, total_steps=total)


def sequential(total: int) -> Build:
    def build(optimizer: Optimizer) -> SequentialLR:
        parts = [LinearLR(optimizer, 0.5, total_iters=2), CosineAnnealingLR(optimizer, total - 2)]
        return SequentialLR(optimizer, parts, [2])

    return build


BOUND: dict[str, Callable[[int], Build]] = {
    "CosineAnnealingLR": cosine,
    "OneCycleLR": one_cycle,
    "LinearSchedule": linear,
    "SequentialLR": sequential,
}


def test_without_a_schedule_or_a_saved_one_nothing_is_fitted() -> None:
    scheduler = cosine(10)(optimizer())
    assert fit_schedule(None, {"T_max": 10}, **facts(10, 10, 0)) is None
    assert fit_schedule(scheduler, None, **facts(10, 10, 0)) is scheduler


@pytest.mark.parametrize("name", list(BOUND))
def test_a_schedule_of_the_same_length_is_taken_as_it_is(name: str) -> None:
    build = BOUND[name](10)
    scheduler = build(optimizer())
    assert fit_schedule(scheduler, after(build, 4)[0], **facts(10, 10, 4)) is scheduler
    assert fit_schedule(scheduler, after(build, 4)[0], **facts(10, 10, 4, "stretch")) is scheduler


@pytest.mark.parametrize(
    "build",
    [
        partial(StepLR, step_size=2),
        partial(ReduceLROnPlateau, patience=1),
        partial(LambdaLR, lr_lambda=lambda step: 0.5**step),
        partial(ConstantSchedule, warmup_steps=2),
        partial(MultiStepLR, milestones=[2, 6]),
    ],
    ids=["StepLR", "ReduceLROnPlateau", "LambdaLR", "ConstantSchedule", "MultiStepLR"],
)
def test_a_schedule_that_does_not_depend_on_the_length_is_taken_as_it_is(build: Build) -> None:
    scheduler, moved = build(optimizer()), build(optimizer())
    for _ in range(3):
        moved.optimizer.step()
        moved.step(*([1.0] if isinstance(moved, ReduceLROnPlateau) else []))
    assert fit_schedule(scheduler, moved.state_dict(), **facts(10, 20, 3)) is scheduler


@pytest.mark.parametrize("name", list(BOUND))
def test_without_a_choice_a_longer_run_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        fit_schedule(BOUND[name](20)(optimizer()), after(BOUND[name](10), 4)[0], **facts(10, 20, 4))
    message = str(caught.value)
    assert message.startswith(f"the run was to have 10 steps and now has 20, and {name} depends on that (")
    assert "10 then, 20 now" in message or "8 then, 18 now" in message
    assert message.endswith(
        "pass extend='stretch' to follow the longer schedule from here, or extend='hold' to keep the last rate "
        "of the old one"
    )


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (partial(StepLR, step_size=2), partial(StepLR, step_size=2, gamma=0.5), r"gamma: 0.1 then, 0.5 now"),
        (partial(MultiStepLR, milestones=[2, 6]), partial(MultiStepLR, milestones=[2, 7]), "milestones"),
        (partial(ReduceLROnPlateau), partial(ReduceLROnPlateau, mode="max"), "mode: min then, max now"),
    ],
    ids=["StepLR", "MultiStepLR", "ReduceLROnPlateau"],
)
def test_a_schedule_that_was_set_up_otherwise_is_refused(old: Build, new: Build, changed: str) -> None:
    with pytest.raises(CheckpointError, match=f"of this run was set up otherwise: .*{changed}"):
        fit_schedule(new(optimizer()), old(optimizer()).state_dict(), **facts(10, 10, 0))


@pytest.mark.parametrize("taken", [0, 4, 10])
@pytest.mark.parametrize("name", list(BOUND))
def test_a_stretched_schedule_goes_on_with_the_rates_of_the_longer_one(name: str, taken: int) -> None:
    build = BOUND[name]
    whole = rates(build(20)(optimizer()), 20)
    fitted = resumed(build(20), after(build(10), taken), **facts(10, 20, taken, "stretch"))
    assert isinstance(fitted, StretchedSchedule)
    assert rates(fitted, 20 - taken) == pytest.approx(whole[taken:], rel=1e-9, abs=1e-12)


def test_a_stretched_schedule_moves_momentum_too() -> None:
    whole = one_cycle(20)(optimizer())
    rates(whole, 15)
    fitted = resumed(one_cycle(20), after(one_cycle(10), 10), **facts(10, 20, 10, "stretch"))
    rates(fitted, 5)
    assert fitted.optimizer.param_groups[0]["momentum"] == pytest.approx(whole.optimizer.param_groups[0]["momentum"])


def test_a_stretched_schedule_moves_the_betas_of_adam() -> None:
    def adam() -> Optimizer:
        return AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)

    whole, short = one_cycle(20)(adam()), one_cycle(10)(adam())
    rates(whole, 12)
    rates(short, 10)
    fitted = fit_schedule(one_cycle(20)(adam()), short.state_dict(), **facts(10, 20, 10, "stretch"))
    fitted.optimizer.load_state_dict(short.optimizer.state_dict())
    fitted.load_state_dict(short.state_dict())
    rates(fitted, 2)
    assert fitted.optimizer.param_groups[0]["betas"] == pytest.approx(whole.optimizer.param_groups[0]["betas"])


@pytest.mark.parametrize("name", list(BOUND))
def test_the_state_of_a_stretched_schedule_is_that_of_the_longer_one(name: str) -> None:
    build = BOUND[name]
    fitted = resumed(build(20), after(build(10), 10), **facts(10, 20, 10, "stretch"))
    rates(fitted, 3)
    saved = fitted.state_dict(), fitted.optimizer.state_dict()
    again = resumed(build(20), saved, **facts(20, 20, 13))
    assert not isinstance(again, StretchedSchedule)
    assert rates(again, 7) == pytest.approx(rates(fitted, 7), rel=1e-12)


@pytest.mark.parametrize("taken", [4, 10])
@pytest.mark.parametrize("name", list(BOUND))
def test_a_held_schedule_goes_to_its_end_and_stays_there(name: str, taken: int) -> None:
    build = BOUND[name]
    short = build(10)(optimizer())
    whole = rates(short, 10)
    end = float(short.optimizer.param_groups[0]["lr"])
    fitted = resumed(build(20), after(build(10), taken), **facts(10, 20, taken, "hold"))
    assert isinstance(fitted, HeldSchedule)
    assert rates(fitted, 20 - taken) == pytest.approx([*whole[taken:], *[end] * 10], rel=1e-9, abs=1e-12)
    assert fitted.get_last_lr() == [pytest.approx(end, abs=1e-12)]


@pytest.mark.parametrize("name", list(BOUND))
@pytest.mark.parametrize("pause", [1, 5, 8])
def test_a_held_schedule_is_resumed_as_held_wherever_it_was_cut(name: str, pause: int) -> None:
    build = BOUND[name]
    saved = after(build(10), 4)
    whole = rates(resumed(build(20), saved, **facts(10, 20, 4, "hold")), 16)
    first = resumed(build(20), saved, **facts(10, 20, 4, "hold"))
    begun = rates(first, pause)
    again = resumed(build(20), (first.state_dict(), first.optimizer.state_dict()), **facts(20, 20, 4 + pause, "hold"))
    assert [*begun, *rates(again, 16 - pause)] == pytest.approx(whole, rel=1e-9, abs=1e-12)


def test_a_run_without_a_known_length_is_held_where_it_is() -> None:
    fitted = fit_schedule(
        cosine(20)(optimizer()),
        after(cosine(10), 4)[0],
        saved_steps=None,
        steps=20,
        taken=4,
        limit=None,
        extend="hold",
    )
    fitted.load_state_dict(after(cosine(10), 4)[0])
    place = 0.5 * (1 + math.cos(math.pi * 4 / 10))
    fitted.optimizer.param_groups[0]["lr"] = place
    assert rates(fitted, 5) == pytest.approx([place] * 5)


def test_a_schedule_of_our_own_with_a_cosine_is_stretched_by_hand() -> None:
    build = partial(CosineSchedule, total_steps=4)
    fitted = resumed(partial(CosineSchedule, total_steps=8), after(build, 4), **facts(4, 8, 4, "stretch"))
    # (1 + cos(pi * k / 8)) / 2 for k = 4, 5, 6, 7
    assert rates(fitted, 4) == pytest.approx([0.5, 0.3086582838174551, 0.14644660940672627, 0.03806023374435663])


def test_settings_are_what_does_not_move() -> None:
    for build in (cosine(10), one_cycle(10), linear(10), sequential(10), partial(StepLR, step_size=3)):
        scheduler = build(optimizer())
        before = schedule_settings(scheduler.state_dict())
        rates(scheduler, 5)
        assert schedule_settings(scheduler.state_dict()) == before


def test_settings_inside_lists_and_dicts_count() -> None:
    assert schedule_settings({"a": [1, {"b": 2.5, "last_epoch": 7}], "c": "word", "d": None, "T_cur": 3}) == {
        "a.0": 1,
        "a.1.b": 2.5,
        "c": "word",
    }


def test_a_continued_wsd_schedule_needs_no_extending() -> None:
    short = WSDLrScheduler(optimizer(), total_steps=10)
    rates(short, 10)
    longer = WSDLrScheduler(optimizer(), total_steps=10, is_continuation_from_checkpoint=True)
    fitted = fit_schedule(longer, short.state_dict(), **facts(10, 20, 10))
    fitted.optimizer.load_state_dict(short.optimizer.state_dict())
    fitted.load_state_dict(short.state_dict())
    # A new stable phase at the full rate, and the decay at its end.
    found = rates(fitted, 10)
    assert found[:9] == [1.0] * 9
