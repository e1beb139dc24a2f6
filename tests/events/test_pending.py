"""Numbers that wait in a table on the device."""

import pytest
import torch

from treadle.events import LossTracker
from treadle.events.pending import PendingRows, read_values

CPU = torch.device("cpu")


def rows(columns: int = 1, room: int = 4) -> PendingRows:
    return PendingRows(columns, dtype=torch.float32, device=CPU, rows=room)


@pytest.mark.parametrize("deterministic", [False, True])
def test_every_step_has_its_own_row_however_often_the_table_begins_anew(deterministic: bool) -> None:
    table = rows()
    torch.use_deterministic_algorithms(deterministic)
    try:
        claimed = []
        for step in range(11):
            table.write([torch.tensor(float(step))])
            claimed += table.claim()
    finally:
        torch.use_deterministic_algorithms(False)
    assert read_values(claimed) == [float(step) for step in range(11)]


def test_what_was_read_is_not_read_again_and_what_comes_later_is() -> None:
    table = rows()
    table.write([torch.tensor(1.0)])
    (first,) = table.claim()
    assert first.read() == 1.0
    table.write([torch.tensor(2.0)])
    (second,) = table.claim()
    assert (first.read(), second.read()) == (1.0, 2.0)


def test_a_step_may_leave_several_numbers() -> None:
    table = rows(columns=3)
    table.write([torch.tensor(1.0), torch.tensor(2), torch.tensor([3.0], dtype=torch.bfloat16)])
    assert read_values(table.claim()) == [1.0, 2.0, 3.0]


def test_rows_that_were_written_on_trial_are_written_over() -> None:
    table = rows()
    table.write([torch.tensor(9.0)])
    table.begin()
    table.write([torch.tensor(1.0)])
    assert read_values(table.claim()) == [1.0]


def test_a_loss_tracker_takes_them_and_names_the_first_bad_one() -> None:
    table, tracker = rows(), LossTracker()
    for step, loss in enumerate([1.0, 3.0, float("nan"), 2.0, 5.0]):
        tracker.progress.step = step
        table.write([torch.tensor(loss)])
        tracker.update(*table.claim(), 2)
    bad = tracker.read()
    assert bad is not None
    assert (bad.step, bad.before) == (3, 3.0)
