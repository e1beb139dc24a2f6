"""The storage of a run: putting, scopes, hints, the iteration, and what it keeps."""

from typing import Any

import numpy as np
import pytest
import torch

from treadle.checkpoint import read_file, write_file
from treadle.errors import ConfigError, UnknownMetricError
from treadle.events import STEP_WINDOW, EventStorage, RunHistory
from treadle.progress import Progress

# The iteration ------------------------------------------------------------------------------------------------


def test_values_belong_to_the_iteration_that_the_storage_began_with_until_it_moves_on() -> None:
    storage = EventStorage(10)
    storage.put_scalar("loss", 1.0)
    storage.step()
    storage.put_scalar("loss", 2.0)
    storage.iter = 20
    storage.put_scalar("loss", 3.0)
    assert storage.history("loss").values() == [(1.0, 10), (2.0, 11), (3.0, 20)]


def test_the_iteration_follows_the_progress_of_a_run_until_it_is_set() -> None:
    storage, progress = EventStorage(), Progress(step=3, samples=24)
    storage.progress = progress
    assert (storage.iter, storage.samples) == (3, 24)
    progress.count_update(8)
    assert (storage.iter, storage.samples) == (4, 32)
    storage.iter, storage.samples = 3, 64
    progress.count_update(8)
    assert (storage.iter, storage.samples) == (3, 64)
    assert progress.step == 5, "to say which iteration it is moves no run"
    storage.progress = progress
    assert (storage.iter, storage.samples) == (5, 40)


def test_a_value_can_be_put_for_another_iteration_by_either_name() -> None:
    storage = EventStorage()
    storage.put_scalar("loss", 1.0, True, 7)
    storage.put_scalar("loss", 2.0, cur_iter=8)
    storage.put_scalar("loss", 3.0, step=9)
    storage.put_scalars({"score": 0.5}, cur_iter=4)
    assert storage.series("loss").steps == [7, 8, 9]
    assert storage.latest() == {"loss": (3.0, 9), "score": (0.5, 4)}


# Putting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kept"),
    [(3, 3), (0.5, 0.5), (True, True), (np.float32(0.5), 0.5), (np.array([2]), 2), (torch.tensor([0.25]), 0.25)],
)
def test_any_single_number_is_a_scalar_and_a_checkpoint_can_hold_it(value: Any, kept: Any, tmp_path: Any) -> None:
    storage = EventStorage()
    storage.put_scalar("score", value)
    assert storage.latest() == {"score": (kept, 0)}
    assert type(storage.latest()["score"][0]) is type(kept)
    write_file(tmp_path / "state", storage.state_dict())
    assert read_file(tmp_path / "state") == storage.state_dict()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0.5", "the metric 'a/score' was given '0.5', a str; put one number"),
        (None, "the metric 'a/score' was given None, a NoneType; put one number"),
        ([1.0], "the metric 'a/score' was given [1.0], a list; put one number"),
        (np.ones(2), "the metric 'a/score' was given array([1., 1.]), a ndarray; put one number"),
        (
            torch.ones(2, 3),
            "the metric 'a/score' was given a tensor of the shape (2, 3); put one number, such as its mean, or use "
            "put_histogram",
        ),
    ],
)
def test_what_is_no_single_number_is_refused_where_it_is_put(value: Any, message: str) -> None:
    storage = EventStorage()
    with pytest.raises(ConfigError) as caught, storage.name_scope("a"):
        storage.put_scalar("score", value)
    assert str(caught.value) == message
    assert storage.names() == set()


def test_several_scalars_may_have_any_names() -> None:
    storage = EventStorage()
    storage.put_scalars({"smoothing_hint": 1.0, "cur_iter": 2.0, "self": 3.0, "Acc@1": 4.0}, loss=5.0, scalars=6.0)
    storage.put_scalars(smoothing_hint=False, cur_iter=9, lr=0.1)
    latest = storage.latest()
    assert {name: value for name, (value, _) in latest.items()} == {
        "smoothing_hint": 1.0,
        "cur_iter": 2.0,
        "self": 3.0,
        "Acc@1": 4.0,
        "loss": 5.0,
        "scalars": 6.0,
        "lr": 0.1,
    }
    assert latest["lr"] == (0.1, 9)
    assert storage.smoothing_hints()["lr"] is False


# Scopes -------------------------------------------------------------------------------------------------------


def test_b36_nested_scopes_make_one_path() -> None:
    storage = EventStorage()
    with storage.name_scope("a"):
        storage.put_scalar("x", 1.0)
        with storage.name_scope("b/"):
            storage.put_scalar("x", 2.0)
            storage.put_scalars(y=3.0)
        storage.put_scalar("z", 4.0)
    storage.put_scalar("x", 5.0)
    assert {name: value for name, (value, _) in storage.latest().items()} == {
        "a/x": 1.0,
        "a/b/x": 2.0,
        "a/b/y": 3.0,
        "a/z": 4.0,
        "x": 5.0,
    }


def test_b36_the_prefix_is_restored_when_the_body_raises() -> None:
    storage = EventStorage()
    with storage.name_scope("a"):
        with pytest.raises(RuntimeError), storage.name_scope("b"):
            raise RuntimeError
        storage.put_scalar("x", 1.0)
    storage.put_scalar("y", 1.0)
    assert storage.names() == {"a/x", "y"}


# Hints and windows --------------------------------------------------------------------------------------------


def test_b35_a_smoothed_metric_is_shown_as_the_median_of_the_last_iterations_and_another_as_it_is() -> None:
    storage = EventStorage()
    for iteration, value in enumerate([100.0, 1.0, 9.0, 2.0, 3.0]):
        storage.iter = iteration
        storage.put_scalars(loss=value)
        storage.put_scalars(lr=value, smoothing_hint=False)
    assert storage.latest_with_smoothing_hint(3) == {"loss": (3.0, 4), "lr": (3.0, 4)}
    assert storage.latest_with_smoothing_hint(4) == {"loss": (2.5, 4), "lr": (3.0, 4)}
    assert storage.latest_with_smoothing_hint() == {"loss": (3.0, 4), "lr": (3.0, 4)}
    assert storage.latest_with_smoothing_hint(1) == storage.latest()


def test_b35_the_window_is_of_iterations_not_of_values() -> None:
    storage = EventStorage()
    for iteration, value in [(0, 50.0), (10, 40.0), (20, 1.0), (20, 2.0), (25, 6.0)]:
        storage.put_scalar("loss", value, cur_iter=iteration)
    assert storage.latest_with_smoothing_hint(6)["loss"] == (2.0, 25)
    assert storage.latest_with_smoothing_hint(5)["loss"] == (6.0, 25)
    assert storage.latest_with_smoothing_hint(16)["loss"] == (4.0, 25)


def test_b35_a_changed_hint_raises() -> None:
    storage = EventStorage()
    storage.put_scalar("loss", 1.0)
    with pytest.raises(ConfigError) as caught:
        storage.put_scalar("loss", 2.0, smoothing_hint=False)
    assert str(caught.value) == (
        "the metric 'loss' was put with smoothing_hint=True before and with False now; use one of them throughout, "
        "or another name"
    )
    assert storage.history("loss").values() == [(1.0, 0)]


def test_metrics_of_epochs_are_never_smoothed() -> None:
    history = RunHistory()
    history.update_metric("eval_loss", 5.0)
    history.update_metric("eval_loss", 1.0)
    assert history.storage.latest_with_smoothing_hint(20) == {"eval_loss": (1.0, 0)}
    assert history.storage.smoothing_hints() == {"eval_loss": False}


def test_of_a_name_of_both_kinds_the_newer_value_is_shown_and_each_kind_kept() -> None:
    storage = EventStorage()
    storage.put_scalar("loss", 4.0)
    storage.put_scalar("loss", 1.0, kind="epoch")
    assert storage.latest() == {"loss": (1.0, 0)}
    storage.put_scalar("loss", 2.0)
    assert storage.latest_with_smoothing_hint() == {"loss": (3.0, 0)}
    assert storage.series("loss").values == [4.0, 2.0]
    assert storage.series("loss", "epoch").values == [1.0]
    other = EventStorage()
    other.load_state_dict(storage.state_dict())
    assert other.state_dict() == storage.state_dict()
    storage.delete("loss", "epoch")
    assert (storage.names("epoch"), storage.names("step")) == (set(), {"loss"})


# What is kept -------------------------------------------------------------------------------------------------


def test_hints_and_averages_over_forgotten_values_come_back_with_the_state() -> None:
    storage, other = EventStorage(), EventStorage()
    for iteration in range(3 * STEP_WINDOW):
        storage.put_scalar("loss", float(iteration), cur_iter=iteration)
        storage.put_scalar("lr", 0.1, smoothing_hint=False, cur_iter=iteration)
    other.load_state_dict(storage.state_dict())
    assert other.history("loss").global_avg() == (3 * STEP_WINDOW - 1) / 2
    assert other.smoothing_hints() == {"loss": True, "lr": False}
    assert other.state_dict() == storage.state_dict()


def test_a_hint_may_change_between_two_runs() -> None:
    storage, other = EventStorage(), EventStorage()
    storage.put_scalar("lr", 0.1)
    other.load_state_dict(storage.state_dict())
    other.put_scalar("lr", 0.2, smoothing_hint=False)
    assert other.latest_with_smoothing_hint() == {"lr": (0.2, 0)}


def test_a_life_begins_where_the_storage_does_and_where_a_checkpoint_left_off() -> None:
    storage = EventStorage(30)
    assert storage.life.kept == 29
    storage.put_scalar("loss", 1.0, cur_iter=34)
    history = RunHistory(storage)
    storage.iter = 36
    state = history.state_dict()
    assert RunHistory().storage.life.kept == -1
    resumed = RunHistory()
    resumed.load_state_dict(state)
    assert resumed.storage.life.kept == 36
    resumed.load_state_dict({"current_epoch": 1, "storage": state["storage"]})
    assert resumed.storage.life.kept == 34, "the last iteration that has a value, where nothing else is known"
    life = resumed.storage.life
    resumed.storage.progress = Progress()
    assert (resumed.storage.life is life, resumed.storage.life.kept) == (False, -1)


def test_clearing_forgets_metrics_hints_images_and_what_is_pending() -> None:
    storage = EventStorage()
    storage.put_scalar("loss", 1.0)
    storage.put_image("cat", torch.zeros(3, 2, 2))
    storage.put_histogram("weights", torch.ones(3))
    storage.clear()
    storage.put_scalar("loss", 1.0, smoothing_hint=False)
    assert (storage.images(), storage.histograms()) == ([], [])
    assert storage.latest() == {"loss": (1.0, 0)}


def test_the_past_of_every_metric_can_be_asked_for_by_name() -> None:
    storage = EventStorage()
    storage.put_scalars(loss=torch.tensor(2.0), score=1.0)
    assert {name: buffer.latest() for name, buffer in storage.histories().items()} == {"loss": 2.0, "score": 1.0}
    with pytest.raises(UnknownMetricError, match=r"no metric 'los' was reported; did you mean 'loss'\?; known: \['los"):
        storage.history("los")
