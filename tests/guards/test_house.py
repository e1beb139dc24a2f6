"""The shape of the house, as counts that `python -m benchmarks.house` prints: none of them may get worse again."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from benchmarks import house
from treadle import Trainer


def test_the_trainer_is_one_class() -> None:
    assert Trainer.__mro__ == (Trainer, object)


def test_no_door_overrides_a_private_name_of_the_core() -> None:
    assert house.overridden() == []


def test_no_door_reads_a_private_name_of_the_core() -> None:
    assert house.read() == []


def test_the_counts_find_what_they_look_for() -> None:
    class Reaching(house.Updater):
        def _count_weight(self, *arguments: object) -> None:
            """Override what is the core's own."""

    Reaching.__module__ = "treadle.engine.reaching"
    assert house.overridden() == ["Reaching._count_weight"]
    del Reaching
    assert {"_count_weight", "_do_what_is_due", "_metrics_file"} <= house.private_names()
    assert not {"_run_train_epoch", "_clip_gradients"} & house.private_names()


def test_an_ordinary_update_makes_few_calls() -> None:
    assert house.calls_of(house.core_run).ordinary <= 40


@pytest.mark.slow
def test_a_run_begins_with_few_calls() -> None:
    """In a process of its own: a start looks at whatever modules are loaded, and here they are those of tests."""
    program = "from benchmarks import house; print(house.calls_of(house.core_run).before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 1848


def test_an_update_of_a_recommender_makes_few_calls() -> None:
    assert house.calls_of(house.recommender_run).ordinary <= 70


def test_a_trainer_has_few_attributes_and_shows_few_of_its_run() -> None:
    model = nn.Linear(1, 1)
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=())
    assert len(vars(trainer)) < 20
    assert len(house.forwarded()) <= 15


def test_the_trainer_and_the_run_only_get_shorter() -> None:
    """Under 700 lines were to be reached."""
    assert house.lines() <= 1118


def test_the_package_keeps_its_shape() -> None:
    counts = house.names_of_the_package()
    assert counts["modules at the top"] == 9
    assert counts["modules in -ing"] <= 21
    assert counts["imports of later rooms"] == 0
