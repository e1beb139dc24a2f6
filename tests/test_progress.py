"""Where a run is, and how often things happen in it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.errors import ConfigError
from treadle.progress import Cadence, Progress

EXACT = settings(deadline=None, derandomize=True, database=None)


def test_an_update_counts_in_the_run_the_epoch_and_the_phase() -> None:
    progress = Progress()
    assert not progress.mid_epoch
    progress.count_update(8)
    progress.count_update(3)
    assert progress == Progress(epoch=0, step=2, samples=11, epoch_step=2, visit=0, visit_step=2)
    assert progress.mid_epoch


def test_leaving_a_phase_counts_it_and_begins_its_steps_anew() -> None:
    progress = Progress(step=5, epoch_step=5, visit_step=5)
    progress.finish_visit()
    assert progress == Progress(step=5, epoch_step=5, visit=1, visit_step=0)


def test_finishing_an_epoch_counts_it_and_keeps_what_counts_over_the_run() -> None:
    progress = Progress(epoch=1, step=7, samples=56, epoch_step=3, visit=2, visit_step=1)
    progress.finish_epoch()
    assert progress == Progress(epoch=2, step=7, samples=56)
    assert not progress.mid_epoch


@EXACT
@given(st.lists(st.integers(0, 10**12), min_size=6, max_size=6))
def test_the_state_of_progress_is_all_of_it(numbers: list[int]) -> None:
    progress, other = Progress(*numbers), Progress()
    other.load_state_dict(progress.state_dict())
    assert other == progress


@pytest.mark.parametrize(
    ("value", "every", "unit", "text"),
    [
        (500, 500, "steps", "500 steps"),
        ("500 steps", 500, "steps", "500 steps"),
        ("1 step", 1, "steps", "1 step"),
        ("1 epoch", 1, "epochs", "1 epoch"),
        (" 2  epochs ", 2, "epochs", "2 epochs"),
        ("3epochs", 3, "epochs", "3 epochs"),
        (Cadence(4, "epochs"), 4, "epochs", "4 epochs"),
    ],
)
def test_a_cadence_is_read_from_a_number_or_words(value: Any, every: int, unit: Any, text: str) -> None:
    cadence = Cadence.parse(value, name="eval_every")
    assert cadence == Cadence(every, unit)
    assert str(cadence) == text
    assert Cadence.parse(str(cadence), name="eval_every") == cadence


@pytest.mark.parametrize(
    "value", [0, -3, 2.0, True, None, "", "often", "0 steps", "-1 epoch", "1.5 epochs", "5 batches", [3], "steps"]
)
def test_what_is_no_cadence_is_refused_with_its_name_and_value(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Cadence.parse(value, name="log_every")
    assert str(caught.value).startswith(f"log_every={value!r} is not a valid interval; write a number")


def test_never_is_a_cadence_where_it_is_allowed() -> None:
    assert Cadence.parse_optional(None, name="eval_every") is None
    assert Cadence.parse_optional("2 epochs", name="eval_every") == Cadence(2, "epochs")


@EXACT
@given(every=st.integers(1, 50), place=st.integers(1, 500))
def test_a_cadence_is_due_at_its_multiples_and_only_in_its_own_unit(every: int, place: int) -> None:
    steps, epochs = Cadence(every, "steps"), Cadence(every, "epochs")
    assert steps.due_after_step(place) == (place % every == 0)
    assert epochs.due_after_epoch(place) == (place % every == 0)
    assert not steps.due_after_epoch(place)
    assert not epochs.due_after_step(place)
    assert (steps.in_steps, epochs.in_steps) == (every, 0)
