import time
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import StepBasedEvaluationCallback, ThroughputMonitor
from treadle.callbacks.throughput_monitor import peak_memory


class Clock(TrainerCallback):
    """A clock that an update moves by one second and an evaluation by a hundred."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.reads = 0.0, 0
        monkeypatch.setattr(time, "perf_counter", self.read)

    def read(self) -> float:
        self.reads += 1
        return self.now

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.now += 1.0

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


def test_the_clock_is_not_read_in_a_step(
    make_trainer: Any, data: TensorDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    make_trainer(ThroughputMonitor, clock).train(data, num_epochs=1, per_device_batch_size=1, log_every=16)
    assert clock.reads == 4  # the start of the epoch, the logs at steps 16 and 32, and the log at its end


def test_memory_is_reported_where_somebody_counts_it(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(ThroughputMonitor)
    trainer.train(data, num_epochs=1)
    measured = peak_memory(torch.device("cpu"))
    assert measured is not None
    assert 1 < trainer.storage.series("peak_memory_mib").values[0] <= measured / 2**20
