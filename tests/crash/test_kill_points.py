"""A kill between any two operations on the checkpoint folder loses no checkpoint that was complete."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.attempts import Attempt
from tests.crash.conftest import Uninterrupted
from tests.crash.program import Options
from treadle.checkpoint import CheckpointStore, Policy

pytestmark = pytest.mark.slow

OPERATIONS = 60
"""More than a start and the two saves after it make, replacing and removing older checkpoints included."""


@pytest.mark.parametrize("keep_last", [1, 2])
def test_a_run_killed_at_each_operation_in_turn_keeps_its_last_good_checkpoint(
    keep_last: int, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    options = Options(folder=tmp_path, workers=0, epochs=60, save_every="1 step", keep_last=keep_last)
    store = CheckpointStore(tmp_path / "checkpoints", Policy())
    newest = 0
    for number in range(1, OPERATIONS + 1):
        assert Attempt(replace(options, kill_at_operation=number)).wait() == -signal.SIGKILL
        found = store.newest_good()
        # Before the first checkpoint there is nothing to find; after it there always is, and never an older one.
        assert (found or 0) >= newest, f"operation {number} lost the checkpoint of step {newest}"
        newest = found or 0
    assert newest > 0
