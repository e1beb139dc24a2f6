"""A way of carrying updates out that a user wrote, in this one file."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.interrupting import assert_same_bits, make_trainer, samples, state_of
from treadle.execution import Execution


class Counted(Execution):
    """Makes updates eagerly, counts them, and takes note of what it was told."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.verb, self.told, self.updates = self.update, [], 0
        self.update = self.counted_update

    def counted_update(self, phase: Any, window: list[Any]) -> None:
        self.updates += 1
        self.verb(phase, window)

    def begin_epoch(self, learning: list[int]) -> None:
        self.told.append(f"epoch of {len(learning)} weights")

    def close(self) -> None:
        self.told.append("closed")


def test_an_execution_of_ones_own_makes_every_update_of_a_run(tmp_path: Path) -> None:
    own = make_trainer(tmp_path / "own", execution=Counted)
    own.train(samples(), 2)
    usual = make_trainer(tmp_path / "usual")
    usual.train(samples(), 2)
    assert own.this_run.execution.updates == 6
    weights = sum(1 for parameter in own.model.parameters() if parameter.requires_grad)
    assert own.this_run.execution.told == [f"epoch of {2 * weights} weights"] * 2 + ["closed"]
    assert_same_bits(state_of(own), state_of(usual))
    assert own.run_config.execution == "Counted"


def test_an_execution_of_ones_own_is_made_anew_for_every_run() -> None:
    model = nn.Linear(2, 1)
    trainer = make_trainer(None, build=lambda: model, execution=Counted)
    trainer.train(samples(), 1)
    first = trainer.this_run.execution
    trainer.train(samples(), 1)
    assert trainer.this_run.execution is not first
    assert (first.updates, trainer.this_run.execution.updates) == (3, 3)
    assert torch.isfinite(model.weight).all()
