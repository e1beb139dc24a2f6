"""The time of a step is the sum of its parts, and timing leaves no trace."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from tests.interrupting import make_trainer, samples
from treadle.callback import TrainerCallback
from treadle.callbacks import StepTimer
from treadle.errors import ConfigError
from treadle.trainer import Trainer

PARTS = {"step_time/data", "step_time/forward", "step_time/backward", "step_time/update", "step_time/logging"}


class Logs(TrainerCallback):
    """Keeps the parts that every log has."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_log(self, trainer: Trainer, scalars: Any = None, **kwargs: Any) -> None:
        self.seen.append({name: value for name, value in scalars.items() if name.startswith("step_time/")})


def test_every_part_of_a_step_is_reported_at_a_log(tmp_path: Path) -> None:
    logs = Logs()
    trainer = make_trainer(tmp_path, StepTimer(every=1), logs)
    trainer.train(samples(), 2, samples(8), log_every=2)
    assert set(logs.seen[0]) == PARTS
    assert all(value >= 0 for seen in logs.seen for value in seen.values())


def test_the_parts_are_the_time_spent_in_the_verbs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A clock that moves by one at every look: each part is the number of looks in it.
    ticks = itertools.count()
    logs = Logs()
    trainer = make_trainer(tmp_path, StepTimer(every=1), logs)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    trainer.train(samples(), 1, log_every=1)
    # began 0, gradients 1 [backward 2, 3] 4, update 5, 6, ended 7: two of seven belong to no verb but to data.
    first = {name.removeprefix("step_time/"): value for name, value in logs.seen[0].items()}
    assert first == {"data": 3.0, "forward": 2.0, "backward": 1.0, "update": 1.0}


def test_one_update_in_so_many_is_timed_and_the_verbs_are_given_back(tmp_path: Path) -> None:
    logs = Logs()
    trainer = make_trainer(tmp_path, StepTimer(every=2), logs)
    trainer.train(samples(), 1, log_every=1)
    # The fourth log is that of the end of the epoch.
    assert [bool(seen) for seen in logs.seen] == [False, True, False, False]
    assert not {"calculate_gradients", "backward_step", "apply_gradients"} & set(vars(trainer))


def test_a_step_that_fails_gives_the_verbs_back_too(tmp_path: Path) -> None:
    class Failing(Trainer):
        def backward_step(self, loss: Any) -> None:
            raise RuntimeError("planted")

    built = make_trainer(tmp_path, StepTimer(every=1))
    built.__class__ = type("Failing", (Failing, type(built)), {})
    with pytest.raises(RuntimeError, match="planted"):
        built.train(samples(), 1)
    assert "backward_step" not in vars(built)


def test_timing_changes_no_weight(tmp_path: Path) -> None:
    weights = []
    for name, callbacks in {"plain": (), "timed": (StepTimer(every=1),)}.items():
        trainer = make_trainer(tmp_path / name, *callbacks)
        trainer.train(samples(), 2)
        weights.append([parameter.tolist() for parameter in trainer.model.parameters()])
    assert weights[0] == weights[1]


def test_fewer_than_one_update_is_refused() -> None:
    with pytest.raises(ConfigError, match="StepTimer: every must be 1 or more updates, got 0"):
        StepTimer(every=0)
