"""Runs on a cluster of Ray: one that this machine makes up for itself."""

import importlib.util
from pathlib import Path

import pytest

from tests.cli.processes import Command, assert_same_end
from tests.cli.project import make_project
from tests.cli.test_interruptions import RUN, TRAIN, TWO, spare

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: treadle[ray]"),
]

RAY = ("--launch", "ray")
LIMIT_SECONDS = 900
"""How long a command may take before it counts as hung: a cluster has many processes of its own to start."""


def test_a_worker_that_dies_has_all_started_again_and_the_run_ends_as_if_none_had_died(tmp_path: Path) -> None:
    whole = spare(make_project(tmp_path / "whole"))
    Command(whole, *TWO).wait(0)
    folder = make_project(tmp_path / "project")
    output = Command(folder, *TWO, *RAY).wait(0, LIMIT_SECONDS)
    assert (folder / RUN / "died").exists()
    assert "runs/small: resuming from iteration 8 of 32" in output
    assert "runs/small: finished after 32 of 32 iterations" in output
    assert_same_end(folder / RUN, whole / RUN)
    assert not (folder / RUN / "ray").exists()


def test_a_mistake_is_told_once_and_not_tried_again(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "project")
    output = Command(folder, *TRAIN, "train.global_batch_size=9", "--nproc", "2", *RAY).wait(1, LIMIT_SECONDS)
    assert output.count("treadle train: global_batch_size=9 is no multiple of train_micro_batch_size=8 times") == 1


def test_more_processes_than_the_cluster_has_room_for_are_refused(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "project")
    output = Command(folder, *TRAIN, "--nproc", "100000", *RAY).wait(1, LIMIT_SECONDS)
    assert "treadle train: --launch ray --nproc 100000 needs a CPU for each process, but the cluster has " in output
