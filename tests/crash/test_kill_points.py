"""A kill between any two operations on the checkpoint folder loses no checkpoint that was complete."""

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.crash.attempts import Attempt, run_killed
from tests.crash.program import Options
from tests.crash.saves import STILL, first_saves, go_back, save_again, save_better, save_next, store_in
from tests.storages import KINDS, checkpoints_in
from treadle.checkpoint import CheckpointStore, Policy

pytestmark = pytest.mark.slow

APART = 1 if os.environ.get("TREADLE_LONG") else 3
"""How many of these moments apart runs are killed; `make long` kills one at each."""
OPERATIONS = {"folder": range(1, 60, 2 * APART), "file": range(1, 280, 7 * APART), "sqlite": range(1, 400, 10 * APART)}
"""More than a start and the two saves after it make, replacing and removing older checkpoints included."""


@pytest.mark.parametrize("storage", KINDS)
def test_a_run_killed_at_each_operation_in_turn_never_loses_a_checkpoint(storage: str, tmp_path: Path) -> None:
    options = Options(folder=tmp_path, storage=storage, workers=0, epochs=60, save_every="1 step", keep_last=1)
    store = CheckpointStore(checkpoints_in(storage, tmp_path), Policy())
    newest = 0
    for number in OPERATIONS[storage]:
        assert Attempt(replace(options, kill_at_operation=number)).wait() == -signal.SIGKILL
        found = store.newest_good()
        # Before the first checkpoint there is nothing to find; after it there always is, and never an older one.
        assert (found or 0) >= newest, f"operation {number} lost the checkpoint of step {newest}"
        newest = found or 0
    assert newest > 0


# One write, or one clearing up, killed at each of its operations ------------------------------------------


@pytest.mark.parametrize("storage", KINDS)
@pytest.mark.parametrize("act", [save_next, save_again, save_better, go_back])
def test_a_store_killed_at_any_operation_holds_a_whole_checkpoint_and_pointers_to_one(
    act: Callable[[Path, str], None], storage: str, tmp_path: Path
) -> None:
    # Two checkpoints are there: the best, of step 5, and the last, of step 7.
    first_saves(tmp_path / "before", storage)
    killed, done = 0, False
    while not done:
        folder = Path(shutil.copytree(tmp_path / "before", tmp_path / f"killed_{killed + 1}"))
        done = run_killed(act, folder, killed + 1, storage) == 0
        killed += not done
        store = store_in(folder, storage, Policy())
        newest = store.newest_good()
        numbers = {5: [5.0], 7: [7.0, 3.0], 9: [3.0]}
        assert newest in numbers, f"operation {killed}"
        if act is not go_back:
            assert newest >= 7, f"operation {killed}"
        found = store.read(newest)
        assert found["number"] in numbers[newest]
        assert torch.equal(found["still"], STILL)
        # What the next start does.
        store.clear_leftovers()
        assert store.pointer("last") == store.newest_good() == newest, f"operation {killed}"
        assert store.pointer("best") == (9 if act is save_better and newest == 9 else 5), f"operation {killed}"
        assert sorted(path.name for path in folder.glob(".*")) == []
    assert killed > (3 if act is go_back else 12)
