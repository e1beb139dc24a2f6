"""Trainings that are killed by SIGKILL, several times over, end in the bits of those that were not."""

import os
import signal
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interrupting import assert_same_bits, starts_of
from tests.recsys.suites.every_model import make
from tests.recsys.trainer.runs import state_of
from treadle.callback import TrainerCallback
from treadle.checkpoint import read_file, write_file

KILLS = {
    "BPR": [2, 5],
    "MultiVAE": [1, 4],
    "RecVAE": [5, 16],
    "SGL": [3, 4],
    "SASRec": [2, 3],
    "gSASRec": [2, 4],
    "DIEN": [4, 5],
    "DeepFM": [1, 4],
    "NCL": [2, 5],
    "S3Rec": [2, 9],
    "KGAT": [4, 9],
}
"""A model for each way of training, and the updates after which it is killed: pairs, users with noise, two optimizers,
graphs drawn each epoch, sequences at all positions, sequences that share rows, sequences beside items nobody chose,
rows with labels, clusters, two stages, triples and an attention that is renewed."""


class Kill(TrainerCallback):
    """Kills the process, as nothing can prevent."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        if trainer.progress.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, name: str, step: int | None) -> None:
    """Train a model to its end, or until it is killed, and write what it ends in."""
    # The threads of the parent do not exist here.
    torch.set_num_threads(1)
    callbacks = () if step is None else (Kill(step),)
    run = make(folder, name, *callbacks, run_dir=str(folder / "run"), save_every="1 step")
    run.fit()
    (folder / "updates.txt").write_text(" ".join(map(str, run.updates)))
    state = state_of(run.trainer)
    state["test"] = run.trainer.evaluate(run.test).exact
    write_file(folder / "end", state)


def start(folder: Path, name: str, step: int | None = None) -> int | None:
    """Train in a process of its own, and return its exit status."""
    process = get_context("fork").Process(target=train, args=(folder, name, step))
    process.start()
    process.join(timeout=120)
    return process.exitcode


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Train once here, so that what torch imports at the first update is there for all processes."""
    make(tmp_path_factory.mktemp("warm"), "BPR").fit()


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", KILLS)
def test_a_killed_training_ends_in_the_bits_of_one_that_was_not(tmp_path: Path, name: str) -> None:
    assert start(tmp_path / "whole", name) == 0
    for step in KILLS[name]:
        assert start(tmp_path / "killed", name, step) == -signal.SIGKILL
        assert not (tmp_path / "killed" / "end").exists()
    assert start(tmp_path / "killed", name) == 0
    # It is killed before the step is saved, and while a thread may still write the one before.
    starts = starts_of(tmp_path / "killed" / "run")
    assert all(kill - 2 <= step < kill for step, kill in zip(starts[1:], KILLS[name], strict=True)), starts
    (_, steps), (began, made) = (
        map(int, (tmp_path / folder / "updates.txt").read_text().split()) for folder in ("whole", "killed")
    )
    assert (began, made) == (starts[-1], steps - starts[-1])
    assert_same_bits(read_file(tmp_path / "killed" / "end"), read_file(tmp_path / "whole" / "end"))
