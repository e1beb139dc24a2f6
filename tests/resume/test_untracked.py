"""Optimizers that the trainer keeps and no checkpoint holds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.interrupting import adamw, network, samples
from treadle.trainer import Trainer


class TwoOptimizers(Trainer):
    """Keeps an optimizer of its own beside the one that it was given."""

    def __init__(self, *args: Any, tracked: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.second = nn.Linear(2, 2)
        self.optimizer_2 = torch.optim.SGD(self.second.parameters(), lr=0.1, momentum=0.9)
        if tracked:
            self.track(second=self.second, optimizer_2=self.optimizer_2)


@pytest.mark.parametrize("tracked", [False, True])
def test_an_optimizer_that_no_checkpoint_holds_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tracked: bool
) -> None:
    model = network()
    trainer = TwoOptimizers(
        model, nn.MSELoss(), adamw(model.parameters()), tracked=tracked, callbacks=(), seed=1, run_dir=tmp_path / "run"
    )
    trainer.train(samples(), 1)
    told = (
        "optimizer_2, of type SGD, is not saved with the run, and begins anew when it is resumed; "
        "call trainer.track(name=...) with it and with what it trains\n"
    )
    assert capsys.readouterr().out == ("" if tracked else told)


def test_a_run_without_a_folder_says_nothing_of_what_is_not_saved(capsys: pytest.CaptureFixture[str]) -> None:
    model = network()
    TwoOptimizers(model, nn.MSELoss(), adamw(model.parameters()), tracked=False, callbacks=()).train(samples(), 1)
    assert capsys.readouterr().out == ""
