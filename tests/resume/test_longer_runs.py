"""Finished runs that go on with a larger limit, and what becomes of their schedules."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
    StepLR,
)

from tests.interrupting import (
    CutAt,
    CutError,
    Rates,
    assert_same_bits,
    assert_same_run,
    contents,
    make_trainer,
    momentum,
    samples,
    starts_of,
    state_of,
    updates_of,
)
from treadle import TrainerPlaceholderValues as Placeholder
from treadle.callbacks import ModelEmaCallback
from treadle.errors import CheckpointError
from treadle.schedules import (
    ConstantSchedule,
    CosineLrScheduler,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PolynomialSchedule,
    StepSchedule,
    WSDLrScheduler,
    WSDSchedule,
)

TOTAL = Placeholder.NUM_EPOCHS * Placeholder.NUM_UPDATE_STEPS_PER_EPOCH
SHORT, LONG = 6, 12
"""The steps of 2 and of 4 epochs of three steps each."""


def train(run_dir: Path, epochs: int, *callbacks: Any, **kwargs: Any) -> Any:
    trainer = make_trainer(run_dir, *callbacks, optimizer=momentum)
    trainer.train(samples(), epochs, resume="auto", **kwargs)
    return trainer


def rates_of(run_dir: Path, epochs: int, *callbacks: Any, **kwargs: Any) -> dict[int, float]:
    rates = Rates()
    train(run_dir, epochs, rates, *callbacks, **kwargs)
    return rates.used


# Runs without a schedule ----------------------------------------------------------------------------------


def test_a_run_with_more_epochs_equals_one_that_had_them_from_the_start(tmp_path: Path) -> None:
    train(tmp_path / "longer", 2)
    longer = train(tmp_path / "longer", 4)
    assert updates_of(longer) == (6, 6)
    assert_same_run(longer, train(tmp_path / "whole", 4))


def test_a_run_with_more_steps_equals_one_that_had_them_from_the_start(tmp_path: Path) -> None:
    def train_steps(run_dir: Path, steps: int) -> Any:
        trainer = make_trainer(run_dir)
        result = trainer.train(samples(), max_steps=steps, resume="auto")
        assert (result.steps, result.stop_reason) == (steps, f"all {steps} steps are done")
        return trainer

    train_steps(tmp_path / "longer", 6)
    longer = train_steps(tmp_path / "longer", 9)
    assert updates_of(longer) == (6, 3)
    assert_same_run(longer, train_steps(tmp_path / "whole", 9))


@pytest.mark.parametrize("cut", [1, 2, 4, 5])
def test_a_run_that_its_limit_cut_inside_an_epoch_goes_on_inside_it(tmp_path: Path, cut: int) -> None:
    make_trainer(tmp_path / "longer").train(samples(), max_steps=cut)
    longer, whole = make_trainer(tmp_path / "longer"), make_trainer(tmp_path / "whole")
    longer.train(samples(), max_steps=9, resume="auto")
    whole.train(samples(), max_steps=9)
    assert updates_of(longer) == (cut, 9 - cut)
    assert_same_bits(state_of(longer), state_of(whole))
    assert longer.progress == whole.progress


def test_an_epoch_that_was_cut_leaves_one_loss_in_the_history_of_the_longer_run(tmp_path: Path) -> None:
    make_trainer(tmp_path / "longer").train(samples(), max_steps=4)
    longer, whole = make_trainer(tmp_path / "longer"), make_trainer(tmp_path / "whole")
    longer.train(samples(), max_steps=9, resume="auto")
    whole.train(samples(), max_steps=9)
    assert updates_of(longer) == (4, 5)
    losses = longer.run_history.get_metric_values("train_loss_epoch")
    assert losses == whole.run_history.get_metric_values("train_loss_epoch")


def test_a_schedule_by_epochs_does_not_move_for_an_epoch_that_was_cut(tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {"create_scheduler_fn": partial(StepLR, step_size=1, gamma=0.5)}
    kwargs |= {"scheduler_interval": "epoch", "resume": "auto"}
    make_trainer(tmp_path / "longer").train(samples(), max_steps=4, **kwargs)
    longer, whole = make_trainer(tmp_path / "longer"), make_trainer(tmp_path / "whole")
    longer.train(samples(), max_steps=9, **kwargs)
    whole.train(samples(), max_steps=9, **kwargs)
    assert updates_of(longer) == (4, 5)
    assert longer.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"] == 0.05 / 8
    assert_same_bits(state_of(longer), state_of(whole))


def test_an_average_by_epochs_does_not_move_for_an_epoch_that_was_cut(tmp_path: Path) -> None:
    def averaged(run_dir: Path, steps: int) -> Any:
        average = ModelEmaCallback(decay=0.5, update_every="1 epoch", save_path=tmp_path / "average.pt")
        make_trainer(run_dir, average).train(samples(), max_steps=steps, resume="auto")
        return average.ema_model.module.state_dict()

    averaged(tmp_path / "longer", 4)
    assert_same_bits(averaged(tmp_path / "longer", 9), averaged(tmp_path / "whole", 9))
    assert starts_of(tmp_path / "longer") == [0, 4]


def test_a_longer_run_that_is_cut_goes_on_exactly(tmp_path: Path) -> None:
    train(tmp_path / "longer", 2)
    with pytest.raises(CutError):
        train(tmp_path / "longer", 4, CutAt(8), save_every=1)
    longer = train(tmp_path / "longer", 4, save_every=1)
    assert starts_of(tmp_path / "longer") == [0, 6, 7]
    assert updates_of(longer) == (7, 5)
    assert_same_run(longer, train(tmp_path / "whole", 4, save_every=1))


def test_a_smaller_limit_than_what_was_done_trains_nothing(tmp_path: Path) -> None:
    first = train(tmp_path, 2)
    again = train(tmp_path, 1)
    assert updates_of(again) == (6, 0)
    assert_same_run(again, first)


def test_a_run_that_its_limit_cut_has_the_end_of_its_epoch_when_it_is_started_again(tmp_path: Path) -> None:
    first = train(tmp_path, 4, max_steps=5, eval_dataset=samples(8))
    again = train(tmp_path, 4, max_steps=5, eval_dataset=samples(8))
    assert updates_of(again) == (5, 0)
    values = first.run_history.get_metric_values("eval_loss_epoch")
    assert len(values) == 2
    assert again.run_history.get_metric_values("eval_loss_epoch") == values


# Schedules that do not depend on the length ---------------------------------------------------------------

OPEN = {
    "StepLR": partial(StepLR, step_size=2, gamma=0.5),
    "ConstantLR": partial(ConstantLR, factor=0.5, total_iters=4),
    "ConstantSchedule": partial(ConstantSchedule, warmup_steps=3),
    "StepSchedule": partial(StepSchedule, step_size=5, gamma=0.5),
    "WSDSchedule": partial(WSDSchedule, decay_steps=2, warmup_steps=3),
    "a fixed length": partial(CosineSchedule, total_steps=100),
}


@pytest.mark.parametrize("name", list(OPEN))
def test_a_schedule_that_does_not_depend_on_the_length_goes_on(tmp_path: Path, name: str) -> None:
    train(tmp_path / "longer", 2, create_scheduler_fn=OPEN[name])
    longer = train(tmp_path / "longer", 4, create_scheduler_fn=OPEN[name])
    assert updates_of(longer) == (SHORT, LONG - SHORT)
    assert_same_run(longer, train(tmp_path / "whole", 4, create_scheduler_fn=OPEN[name]))


# Schedules that do ----------------------------------------------------------------------------------------


def warmed_up_cosine(optimizer: Optimizer, total: int) -> SequentialLR:
    """What many write: a warm-up, and then torch's cosine for the rest of the run."""
    parts = [LinearLR(optimizer, 0.5, total_iters=2), CosineAnnealingLR(optimizer, T_max=total - 2)]
    return SequentialLR(optimizer, parts, milestones=[2])


def chained(optimizer: Optimizer, total: int) -> ChainedScheduler:
    return ChainedScheduler([LinearLR(optimizer, 0.5, total_iters=2), PolynomialLR(optimizer, total_iters=total)])


BOUND = {
    "OneCycleLR": partial(OneCycleLR, max_lr=0.1, total_steps=TOTAL),
    "CosineAnnealingLR": partial(CosineAnnealingLR, T_max=TOTAL),
    "LinearLR": partial(LinearLR, start_factor=1.0, end_factor=0.1, total_iters=TOTAL),
    "PolynomialLR": partial(PolynomialLR, total_iters=TOTAL),
    "SequentialLR": partial(warmed_up_cosine, total=TOTAL),
    "ChainedScheduler": partial(chained, total=TOTAL),
    "CosineSchedule": partial(CosineSchedule, total_steps=TOTAL),
    "LinearSchedule": partial(LinearSchedule, total_steps=TOTAL, warmup_steps=2),
    "PolynomialSchedule": partial(PolynomialSchedule, total_steps=TOTAL),
    "ExponentialSchedule": partial(ExponentialSchedule, total_steps=TOTAL),
    "ConstantSchedule": partial(ConstantSchedule, total_steps=TOTAL, cooldown_steps=3),
    "WSDSchedule": partial(WSDSchedule, decay_steps=3, total_steps=TOTAL),
    "CosineLrScheduler": CosineLrScheduler.create_scheduler_fn(),
    "WSDLrScheduler": WSDLrScheduler.create_scheduler_fn(decay_phase_ratio=0.5),
}


@pytest.mark.parametrize("name", list(BOUND))
def test_a_schedule_that_depends_on_the_length_asks_what_to_do(tmp_path: Path, name: str) -> None:
    train(tmp_path, 2, create_scheduler_fn=BOUND[name])
    with pytest.raises(CheckpointError) as caught:
        train(tmp_path, 4, create_scheduler_fn=BOUND[name])
    message = str(caught.value)
    assert message.startswith(f"the run was to have 6 steps and now has 12, and {name} depends on that (")
    assert "pass extend='stretch' to follow the longer schedule from here" in message
    assert "or extend='hold' to keep the last rate of the old one" in message


@pytest.mark.parametrize("name", list(BOUND))
def test_a_stretched_schedule_has_the_rates_of_the_longer_one_from_there_on(tmp_path: Path, name: str) -> None:
    whole = rates_of(tmp_path / "whole", 4, create_scheduler_fn=BOUND[name])
    train(tmp_path / "longer", 2, create_scheduler_fn=BOUND[name])
    longer = rates_of(tmp_path / "longer", 4, create_scheduler_fn=BOUND[name], extend="stretch")
    assert list(longer) == list(range(SHORT + 1, LONG + 1))
    assert longer == {step: pytest.approx(whole[step], rel=1e-12) for step in longer}


@pytest.mark.parametrize("name", list(BOUND))
def test_a_held_schedule_keeps_the_rate_it_ended_with(tmp_path: Path, name: str) -> None:
    first = train(tmp_path, 2, create_scheduler_fn=BOUND[name])
    ended = first.optimizer.param_groups[0]["lr"]
    rates = rates_of(tmp_path, 4, create_scheduler_fn=BOUND[name], extend="hold")
    assert rates == dict.fromkeys(range(SHORT + 1, LONG + 1), ended)


def test_stretched_and_held_rates_by_hand(tmp_path: Path) -> None:
    cosine = partial(CosineSchedule, total_steps=TOTAL, min_ratio=0.1)
    for how in ("stretch", "hold"):
        train(tmp_path / how, 2, create_scheduler_fn=cosine)
    stretched = rates_of(tmp_path / "stretch", 4, create_scheduler_fn=cosine, extend="stretch")
    # Update number k, counted from 0, is made at 0.05 * (0.1 + 0.9 * (1 + cos(pi * k / 12)) / 2).
    expected = {k + 1: 0.05 * (0.1 + 0.45 * (1 + math.cos(math.pi * k / 12))) for k in range(6, 12)}
    assert stretched == {step: pytest.approx(rate, rel=1e-12) for step, rate in expected.items()}
    held = rates_of(tmp_path / "hold", 4, create_scheduler_fn=cosine, extend="hold")
    assert list(held.values()) == pytest.approx([0.005] * 6, rel=1e-12)


@pytest.mark.parametrize("how", ["stretch", "hold"])
@pytest.mark.parametrize("name", ["OneCycleLR", "CosineAnnealingLR", "CosineSchedule", "WSDLrScheduler"])
def test_an_extended_run_that_is_cut_goes_on_exactly(tmp_path: Path, name: str, how: str) -> None:
    kwargs: dict[str, Any] = {"create_scheduler_fn": BOUND[name], "extend": how, "save_every": 1}
    for folder in ("whole", "cut"):
        train(tmp_path / folder, 2, create_scheduler_fn=BOUND[name])
    for step in (7, 9, 10):
        with pytest.raises(CutError):
            train(tmp_path / "cut", 4, CutAt(step), **kwargs)
    cut = train(tmp_path / "cut", 4, **kwargs)
    assert starts_of(tmp_path / "cut") == [0, 6, 6, 8, 9]
    assert updates_of(cut) == (9, 3)
    assert_same_run(cut, train(tmp_path / "whole", 4, **kwargs))


@pytest.mark.parametrize("how", ["stretch", "hold"])
def test_an_extended_run_can_be_extended_again(tmp_path: Path, how: str) -> None:
    for epochs in (1, 2):
        train(tmp_path, epochs, create_scheduler_fn=BOUND["CosineSchedule"], extend=how)
    rates = rates_of(tmp_path, 4, create_scheduler_fn=BOUND["CosineSchedule"], extend=how)
    expected = {k + 1: 0.025 * (1 + math.cos(math.pi * k / 12)) if how == "stretch" else 0.0 for k in range(6, 12)}
    assert rates == {step: pytest.approx(rate, rel=1e-12) for step, rate in expected.items()}


def test_a_run_that_was_cut_is_held_where_it_was_to_end(tmp_path: Path) -> None:
    linear = partial(LinearSchedule, total_steps=TOTAL, min_ratio=0.5)
    with pytest.raises(CutError):
        train(tmp_path, 2, CutAt(4), create_scheduler_fn=linear, save_every=1)
    rates = rates_of(tmp_path, 4, create_scheduler_fn=linear, extend="hold")
    # From 1 to 0.5 in six steps, and there it stays.
    expected = {k + 1: 0.05 * (1 - min(k, 6) / 12) for k in range(4, 12)}
    # The exception came before the save of step 4 was due.
    expected |= {4: 0.05 * (1 - 3 / 12)}
    assert rates == {step: pytest.approx(rate, rel=1e-12) for step, rate in expected.items()}


@pytest.mark.parametrize("how", ["stretch", "hold"])
def test_a_schedule_by_epochs_is_extended_by_epochs(tmp_path: Path, how: str) -> None:
    kwargs: dict[str, Any] = {"create_scheduler_fn": partial(CosineAnnealingLR, T_max=Placeholder.NUM_EPOCHS)}
    kwargs |= {"scheduler_interval": "epoch", "extend": how}
    train(tmp_path, 2, **kwargs)
    rates = rates_of(tmp_path, 4, **kwargs)
    by_epoch = [0.0, 0.0] if how == "hold" else [0.025 * (1 + math.cos(math.pi * k / 4)) for k in (2, 3)]
    expected = {step: by_epoch[(step - 7) // 3] for step in range(7, 13)}
    assert rates == {step: pytest.approx(rate, abs=1e-12) for step, rate in expected.items()}


def test_a_schedule_that_was_changed_otherwise_is_refused_with_what_changed(tmp_path: Path) -> None:
    train(tmp_path, 2, create_scheduler_fn=partial(StepLR, step_size=2, gamma=0.5))
    with pytest.raises(CheckpointError) as caught:
        train(tmp_path, 2, create_scheduler_fn=partial(StepLR, step_size=3, gamma=0.5))
    assert str(caught.value) == "the StepLR of this run was set up otherwise: step_size: 2 then, 3 now"


def test_a_run_in_need_of_extending_is_left_as_it_was(tmp_path: Path) -> None:
    train(tmp_path, 2, create_scheduler_fn=BOUND["CosineSchedule"])
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="extend="):
        train(tmp_path, 4, create_scheduler_fn=BOUND["CosineSchedule"])
    assert contents(tmp_path) == before
