"""Whatever the data comes from, a killed run goes on at the sample where it was."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash.attempts import Attempt, assert_same_outcome, finish
from tests.crash.conftest import Uninterrupted
from tests.crash.program import Options

pytestmark = pytest.mark.slow

KILLS = [8, 11]
"""Right after the first epoch of seven updates, whose last step is then gone on from, and in the second."""


@pytest.mark.parametrize(
    ("data", "workers"),
    [
        ("shuffled loader", 2),
        ("own generator", 0),
        ("weighted", 2),
        ("weighted", 0),
        ("batch sampler", 2),
        ("placed sequence", 0),
        ("sequence", 0),
        ("sequence", 2),
        ("shared sequence", 2),
        ("packed", 2),
        ("packed sequence", 2),
    ],
)
def test_data_of_every_kind_goes_on_in_the_middle_of_an_epoch(
    data: str, workers: int, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    saving: dict[str, Any] = {"save_every": "1 step", "asynchronous": False}
    options = Options(folder=tmp_path, data=data, workers=workers, epochs=2, kill_at_steps=KILLS, **saving)
    for _ in KILLS:
        assert Attempt(options).wait() == -signal.SIGKILL
    finish(options)
    # Without a sampler it depends on the number of workers who gets which sample.
    of_one = workers if "sequence" in data and "packed" not in data else 0
    assert_same_outcome(tmp_path, uninterrupted(data=data, workers=of_one, epochs=2), began=[KILLS[-1] - 1])


def test_the_number_of_workers_may_change_with_every_start(tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    options = Options(folder=tmp_path, kill_at_steps=[2, 5, 9, 12, 17])
    for workers in (0, 1, 2, 1, 0):
        assert Attempt(replace(options, workers=workers)).wait() == -signal.SIGKILL
    finish(options)
    assert_same_outcome(tmp_path, uninterrupted(), began=[14, 16])
    assert_same_outcome(uninterrupted(workers=0), uninterrupted(), began=[0])


def test_a_mixture_of_packed_text_is_resumed_with_other_numbers_of_workers(
    tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    options = Options(folder=tmp_path, data="packed mixture", epochs=2, kill_at_steps=[3, 8, 12])
    for workers in (2, 0, 1):
        assert Attempt(replace(options, workers=workers)).wait() == -signal.SIGKILL
    finish(replace(options, workers=2))
    assert_same_outcome(tmp_path, uninterrupted(data="packed mixture", workers=0, epochs=2), began=[10, 12])
