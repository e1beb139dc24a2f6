import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import StepBasedEvaluationCallback, ThroughputMonitor
from treadle.callbacks.throughput_monitor import peak_memory
from treadle.data.prefetch import what_to_try


class Clock(TrainerCallback):
    """A clock that an update moves by a second, or so many, and an evaluation by a hundred."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 1.0) -> None:
        self.now, self.reads, self.seconds = 0.0, 0, seconds
        monkeypatch.setattr(time, "perf_counter", self.read)

    def read(self) -> float:
        self.reads += 1
        return self.now

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.now += self.seconds

    def on_eval_step_end(self, trainer: Any, **kwargs: Any) -> None:
        self.now += 100.0


def test_samples_and_steps_per_second_are_those_since_the_last_log(
    make_trainer: Any, data: TensorDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(ThroughputMonitor, Clock(monkeypatch))
    trainer.train(data, num_epochs=2, log_every=2)
    assert trainer.storage.series("samples_per_second").values == [8.0] * 4
    assert trainer.storage.series("steps_per_second").values == [1.0] * 4
    assert trainer.storage.series("steps_per_second").steps == [2, 4, 6, 8]


def test_the_time_of_evaluations_does_not_count(
    make_trainer: Any, data: TensorDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    trainer = make_trainer(ThroughputMonitor, StepBasedEvaluationCallback(3), clock)
    trainer.train(data, num_epochs=2, eval_dataset=data, log_every=4)
    assert trainer.storage.series("steps_per_second").values == [1.0, 1.0]


def test_the_clock_is_read_around_the_data_of_a_step_and_not_otherwise_in_it(
    make_trainer: Any, data: TensorDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    make_trainer(ThroughputMonitor, clock).train(data, num_epochs=1, per_device_batch_size=1, log_every=16)
    # The start of the epoch, the logs at steps 16 and 32, the log at its end; and twice for each of 32 batches.
    assert clock.reads == 4 + 2 * 32


class Slow(Dataset[Any]):
    """Samples that take a while, by a clock that only they and the updates move."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        self.clock.now += self.seconds
        return torch.ones(2), torch.zeros(1)


def train_slowly(make_trainer: Any, monkeypatch: pytest.MonkeyPatch, seconds: float, *, log_every: int = 10) -> Any:
    """Train two epochs of 40 steps of a second, with data that takes `seconds` each."""
    clock = Clock(monkeypatch)
    trainer = make_trainer(ThroughputMonitor, clock)
    trainer.train(Slow(clock, seconds), num_epochs=2, per_device_batch_size=1, log_every=log_every)
    return trainer


def test_the_wait_for_data_is_reported_for_each_step(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = train_slowly(make_trainer, monkeypatch, 0.5)
    assert trainer.storage.series("data_time").values == pytest.approx([0.5] * 8)
    assert trainer.storage.series("steps_per_second").values == pytest.approx([1 / 1.5] * 8)


def test_a_run_that_waits_for_its_data_says_so_once_with_what_to_try(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_slowly(make_trainer, monkeypatch, 1.0)
    said = [line for line in capsys.readouterr().out.splitlines() if "waiting" in line]
    assert said == [
        "50% of the time of the last 10 steps was spent waiting for the train data: give its loader workers, such as "
        "num_workers=4; if it fits into memory as tensors, use an InMemoryDataset"
    ]


def test_nothing_is_said_before_a_second_was_lost(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch, 0.01)
    trainer = make_trainer(ThroughputMonitor, clock)
    trainer.train(Slow(clock, 0.01), num_epochs=2, per_device_batch_size=1, log_every=10)
    assert "waiting" not in capsys.readouterr().out
    assert trainer.storage.series("data_time").values == pytest.approx([0.01] * 8)
    trainer.train(Slow(clock, 0.01), num_epochs=3, per_device_batch_size=1, log_every=10)
    assert "waiting for the train data" in capsys.readouterr().out


def test_each_run_says_it_anew(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    trainer = make_trainer(ThroughputMonitor, clock)
    for _ in range(2):
        trainer.train(Slow(clock, 1.0), num_epochs=1, per_device_batch_size=1, log_every=10)
    assert capsys.readouterr().out.count("was spent waiting") == 2


@pytest.mark.parametrize(("seconds", "log_every"), [(0.2, 10), (1.0, 5), (1.0, 40)])
def test_a_fifth_of_the_time_a_few_steps_and_the_first_log_are_no_reason_to_say_so(
    make_trainer: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    log_every: int,
) -> None:
    clock = Clock(monkeypatch)
    trainer = make_trainer(ThroughputMonitor, clock)
    trainer.train(Slow(clock, seconds), num_epochs=1, per_device_batch_size=1, log_every=log_every)
    assert "waiting" not in capsys.readouterr().out


class Batches:
    """Ready batches, made by somebody's own code."""

    def __iter__(self) -> Iterator[Any]:
        yield torch.ones(2, 2), torch.zeros(2, 1)


@pytest.mark.parametrize(
    ("source", "device", "text"),
    [
        (
            DataLoader([1], num_workers=0),  # type: ignore[arg-type]
            "cuda",
            "give its loader workers, such as num_workers=4; if it fits on the GPU as tensors, use an InMemoryDataset",
        ),
        (
            DataLoader([1], num_workers=2),  # type: ignore[arg-type]
            "cpu",
            "its loader has num_workers=2: try more of them, or do less for each sample; if it fits into memory as "
            "tensors, use an InMemoryDataset",
        ),
        (
            Batches(),
            "cpu",
            "its batches come from an iterable of your own; put the work that makes them into a DataLoader's workers",
        ),
    ],
    ids=["alone", "workers", "iterable"],
)
def test_what_to_try_fits_the_source(source: Any, device: str, text: str) -> None:
    assert what_to_try(source, torch.device(device), ahead=True) == text


def test_where_batches_are_not_sent_ahead_to_a_gpu_the_reason_is_said_first() -> None:
    assert what_to_try(Batches(), torch.device("cuda")) == (
        "it keeps its own place, as an iterator or by a state_dict, so its batches are not sent ahead, as those of a "
        "map-style data set are; its batches come from an iterable of your own; put the work that "
        "makes them into a DataLoader's workers"
    )


def test_memory_is_reported_where_somebody_counts_it(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(ThroughputMonitor)
    trainer.train(data, num_epochs=1)
    measured = peak_memory(torch.device("cpu"))
    assert measured is not None
    assert 1 < trainer.storage.series("peak_memory_mib").values[0] <= measured / 2**20
