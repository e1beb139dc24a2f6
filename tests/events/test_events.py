"""What a run reports: the storage, the history and the tracker of losses."""

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.checkpoint import read_file, write_file
from treadle.errors import ConfigError, UnknownMetricError
from treadle.events import STEP_WINDOW, EventStorage, InMemoryRunHistory, LossTracker, RunHistory, read_values
from treadle.progress import Progress
from treadle.trainer import Trainer

EXACT = settings(deadline=None, derandomize=True, database=None)

# Storage ------------------------------------------------------------------------------------------------------


def test_values_are_put_at_the_step_of_the_run_and_come_to_the_host_by_a_flush() -> None:
    storage = EventStorage()
    storage.put_scalar("loss", torch.tensor(2.0))
    storage.progress.step = 7
    storage.put_scalar("loss", torch.tensor(1.0))
    storage.put_scalar("rate", 0.5, step=3)
    assert storage.flush() == {"loss": 1.0, "rate": 0.5}
    assert storage.flush() == {}
    assert (storage.series("loss").steps, storage.series("loss").values) == ([0, 7], [2.0, 1.0])
    assert storage.series("rate").steps == [3]


def test_a_tensor_is_put_without_its_graph_and_is_not_read_before_a_flush() -> None:
    storage = EventStorage()
    loss = torch.tensor(1.0, requires_grad=True) * 1
    storage.put_scalar("loss", loss)
    with torch.no_grad():
        loss.fill_(5.0)
    assert storage.flush() == {"loss": 5.0}


def test_reading_a_series_or_the_names_brings_pending_values_first() -> None:
    storage = EventStorage()
    storage.put_scalar("loss", torch.tensor(3.0))
    assert storage.series("loss").values == [3.0]
    storage.put_scalar("epoch_loss", 1.0, kind="epoch")
    assert storage.names() == {"loss", "epoch_loss"}
    assert storage.names("step") == {"loss"}
    assert storage.names("epoch") == {"epoch_loss"}


def test_an_unknown_series_is_an_error_with_the_nearest_name() -> None:
    storage = EventStorage()
    storage.put_scalar("train_loss", 1.0)
    with pytest.raises(UnknownMetricError, match=r"'train_los'.*did you mean 'train_loss'.*known: \['train_loss'\]"):
        storage.series("train_los")


def test_a_step_scalar_forgets_values_beyond_its_window_and_an_epoch_metric_none() -> None:
    storage = EventStorage()
    for step in range(3 * STEP_WINDOW):
        storage.put_scalar("loss", step, step=step)
        storage.put_scalar("metric", step, step=step, kind="epoch")
    loss = storage.series("loss")
    assert STEP_WINDOW <= len(loss.values) <= 2 * STEP_WINDOW
    assert loss.values == loss.steps == list(range(3 * STEP_WINDOW))[-len(loss.values) :]
    assert len(storage.series("metric").values) == 3 * STEP_WINDOW


def test_a_metric_can_be_deleted_even_before_it_was_read() -> None:
    storage = EventStorage()
    storage.put_scalar("loss", 1.0)
    storage.delete("loss")
    storage.delete("never there")
    assert storage.names() == set()


def test_the_state_of_a_storage_is_plain_data_and_brings_it_back() -> None:
    storage, other = EventStorage(), EventStorage()
    storage.put_scalar("loss", torch.tensor(1.5), step=2)
    storage.put_scalar("score", 3, kind="epoch")
    other.put_scalar("forgotten", 1.0)
    other.load_state_dict(json.loads(json.dumps(storage.state_dict())))
    assert (other.names("step"), other.names("epoch")) == ({"loss"}, {"score"})
    assert (other.series("loss").steps, other.series("loss").values) == ([2], [1.5])
    assert (other.series("score").steps, other.series("score").values) == ([0], [3])


def test_one_name_may_be_a_scalar_of_steps_and_a_metric_of_epochs() -> None:
    history = RunHistory()
    history.storage.put_scalar("accuracy", 0.25)
    history.update_metric("accuracy", 0.75)
    assert history.get_latest_metric("accuracy") == 0.75
    assert history.get_metric_values("accuracy") == [0.75]


# Reading values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([torch.tensor(2.5)], [2.5]),
        ([torch.tensor(1.5), torch.tensor(2.5)], [1.5, 2.5]),
        ([1.0, torch.tensor(2.0), "a", None], [1.0, 2.0, "a", None]),
        ([torch.tensor([3.0])], [3.0]),
        ([torch.tensor([[1, 2], [3, 4]])], [[[1, 2], [3, 4]]]),
        ([torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(0.1, dtype=torch.float64)], [1.0, 0.1]),
        ([torch.tensor(16777217), torch.tensor(1.5)], [16777217, 1.5]),
        ([torch.tensor(1.5), torch.tensor(16777217)], [1.5, 16777217]),
        ([torch.tensor(True), torch.tensor(0.5)], [True, 0.5]),
    ],
)
def test_values_are_read_as_they_are_whatever_stands_beside_them(values: list[Any], expected: list[Any]) -> None:
    got = read_values(values)
    assert got == expected
    assert [type(value) for value in got] == [type(value) for value in expected]


# History ------------------------------------------------------------------------------------------------------


def test_a_history_keeps_the_values_of_each_metric_in_order() -> None:
    history = InMemoryRunHistory()
    history.update_metric("loss", 2.0)
    history.update_metric("loss", torch.tensor(1.0))
    history.update_metric("score", 1)
    assert history.get_metric_names() == {"loss", "score"}
    assert history.get_metric_values("loss") == [2.0, 1.0]
    assert history.get_latest_metric("loss") == 1.0


def test_changing_a_list_of_values_changes_no_history() -> None:
    history = RunHistory()
    history.update_metric("loss", 1.0)
    history.get_metric_values("loss").append(2.0)
    assert history.get_metric_values("loss") == [1.0]


def test_asking_for_what_is_not_there_leaves_no_trace() -> None:
    history = RunHistory()
    assert history.get_metric_values("loss") == []
    with pytest.raises(UnknownMetricError, match=r"no metric 'loss' was recorded; recorded so far: \[\]"):
        history.get_latest_metric("loss")
    assert history.get_metric_names() == set()


def test_a_prefix_stays_through_a_reset() -> None:
    history = RunHistory()
    history.set_metric_name_prefix("ema_")
    history.update_metric("loss", 1.0)
    history._increment_epoch()
    assert (history.metric_name_prefix, history.get_metric_names(), history.current_epoch) == ("ema_", {"ema_loss"}, 2)
    history.reset()
    assert (history.metric_name_prefix, history.get_metric_names(), history.current_epoch) == ("ema_", set(), 1)


def test_a_metric_can_be_deleted_from_a_history() -> None:
    history = RunHistory()
    history.update_metric("loss", 1.0)
    history.delete_metric("loss")
    assert history.get_metric_names() == set()


def test_the_state_of_a_history_has_its_epoch_and_its_metrics() -> None:
    history, other = RunHistory(), RunHistory()
    history.update_metric("loss", 1.0)
    history._set_epoch(4)
    other.load_state_dict(history.state_dict())
    assert other.current_epoch == 4
    assert other.get_metric_values("loss") == [1.0]


@pytest.mark.parametrize("value", [object(), lambda: 1, {1, 2}, [object()], {"a": object()}, {1: 2.0}])
def test_a_metric_that_is_no_plain_data_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"metric 'score' was given a \w+; record a number, a tensor, a string, or"):
        RunHistory().update_metric("score", value)


PLAIN: dict[str, Callable[[], Any]] = {
    "int": lambda: 3,
    "tensor": lambda: torch.tensor(0.5),
    "vector": lambda: torch.tensor([0.5, 1.0]),
    "numpy scalar": lambda: np.float32(0.5),
    "numpy vector": lambda: np.array([0.5, 1.0]),
    "fraction": lambda: Fraction(1, 2),
    "nested": lambda: {"by class": [0.5, torch.tensor(0.25)], "name": "x", "none": None},
}


@pytest.mark.parametrize("kind", list(PLAIN))
def test_a_metric_that_is_accepted_can_be_saved(kind: str, tmp_path: Path) -> None:
    """Or it is refused where it is recorded, not at the next checkpoint."""
    history = RunHistory()
    try:
        history.update_metric("score", PLAIN[kind]())
    except ConfigError:
        return
    write_file(tmp_path / "history", history.state_dict())
    other = RunHistory()
    other.load_state_dict(read_file(tmp_path / "history"))
    assert len(other.get_metric_values("score")) == 1


class Elsewhere(RunHistory):
    """A history that keeps its values in a place of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, list[Any]] = {}

    def get_metric_names(self) -> set[str]:
        return set(self.values)

    def get_metric_values(self, metric_name: str) -> list[Any]:
        return self.values.get(metric_name, [])

    def get_latest_metric(self, metric_name: str) -> Any:
        return self.values[metric_name][-1]

    def update_metric(self, metric_name: str, metric_value: Any) -> None:
        self.values.setdefault(metric_name, []).append(metric_value)

    def reset(self) -> None:
        self.values = {}
        self._set_epoch(1)


def test_a_trainer_can_be_given_a_history_that_keeps_its_values_elsewhere() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = Elsewhere()
    trainer = Trainer(model, torch.nn.MSELoss(), optimizer, (), history, device="cpu")
    data = [(torch.ones(2), torch.zeros(1))] * 4
    result = trainer.train(data, 2, eval_dataset=data)
    trainer.evaluate(data)
    assert {name: len(values) for name, values in history.values.items()} == {
        "train_loss_epoch": 2,
        "eval_loss_epoch": 2,
        "evaluation_loss": 1,
    }
    assert result.history["train_loss_epoch"] == history.values["train_loss_epoch"]
    assert history.current_epoch == 3


# Losses -------------------------------------------------------------------------------------------------------


def test_the_average_loss_is_weighted_by_batch_sizes() -> None:
    tracker = LossTracker()
    assert math.isnan(tracker.average)
    tracker.update(1.0, 4)
    tracker.update(torch.tensor(4.0, requires_grad=True) * 1, torch.tensor(2))
    assert (tracker.total_loss, tracker.running_count, tracker.average, tracker.loss_value) == (12.0, 6.0, 2.0, 4.0)
    tracker.reset()
    assert (tracker.total_loss, tracker.running_count) == (0.0, 0.0)


@EXACT
@given(
    losses=st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.integers(1, 64)), min_size=1, max_size=30),
    reads=st.sets(st.integers(0, 30)),
)
def test_sums_do_not_depend_on_when_they_were_read(losses: list[tuple[float, int]], reads: set[int]) -> None:
    often, once = LossTracker(), LossTracker()
    for place, (loss, weight) in enumerate(losses):
        often.update(torch.tensor(loss), weight)
        once.update(torch.tensor(loss), weight)
        if place in reads:
            _ = often.total_loss
    assert often.total_loss == once.total_loss
    assert often.running_count == once.running_count
    assert often.average == pytest.approx(sum(a * b for a, b in losses) / sum(b for _, b in losses), abs=1e-9)


def test_a_summary_has_what_came_since_the_last_one_and_the_epoch_goes_on() -> None:
    tracker = LossTracker()
    tracker.update(1.0, 2)
    tracker.update(3.0, 2)
    assert tracker.take()[:2] == (8.0, 4.0)
    tracker.update(5.0, 1)
    assert tracker.take() == (5.0, 1.0, None)
    assert tracker.take() == (0.0, 0.0, None)
    assert (tracker.total_loss, tracker.running_count) == (13.0, 5.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_bad_loss_is_reported_with_its_step_and_the_loss_before(value: float) -> None:
    progress = Progress(step=10)
    tracker = LossTracker(progress)
    for loss in (0.5, value, math.nan):
        tracker.update(torch.tensor(loss), 1)
        progress.step += 1
    bad = tracker.take().nonfinite
    assert bad is not None
    assert (bad.step, bad.before) == (12, 0.5)
    assert bad.value == value or math.isnan(value)


def test_the_state_of_a_tracker_brings_its_sums_back() -> None:
    tracker, other = LossTracker(), LossTracker()
    tracker.update(torch.tensor(2.0), 3)
    tracker.take()
    tracker.update(torch.tensor(1.0), 3)
    other.update(9.0, 9)
    other.load_state_dict(tracker.state_dict())
    assert (other.total_loss, other.running_count, other.loss_value) == (9.0, 6.0, 1.0)
    assert other.take() == tracker.take() == (3.0, 3.0, None)
