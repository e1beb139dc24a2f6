"""A number format that a user wrote, in this one file."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.interrupting import CutAt, CutError, assert_same_bits, make_trainer, samples, state_of
from treadle import Trainer
from treadle.errors import ConfigError
from treadle.precision import KINDS, LossScaling, Precision


class Eighths(nn.Linear):
    """A linear layer that computes with inputs and weights rounded to multiples of an eighth."""

    calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        type(self).calls += 1
        weight = self.weight + ((self.weight * 8).round() / 8 - self.weight).detach()
        return nn.functional.linear(inputs + ((inputs * 8).round() / 8 - inputs).detach(), weight, self.bias)


class Rounded(Precision):
    """Forward passes in multiples of an eighth; weights, gradients and the loss stay in fp32."""

    kinds = {**KINDS, "eighths": None}

    def __init__(self, device: torch.device) -> None:
        self.entered: list[str] = []
        super().__init__("eighths", device)

    def convert(self, model: nn.Module) -> None:
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = Eighths

    def autocast(self, kind: str = "") -> AbstractContextManager[Any]:
        @contextmanager
        def noted() -> Iterator[None]:
            self.entered.append(kind)
            yield

        return noted()


def test_a_format_of_ones_own_converts_the_model_and_is_around_every_pass(tmp_path: Path) -> None:
    Eighths.calls = 0
    trainer = make_trainer(tmp_path / "run", precision=Rounded)
    trainer.train(samples(), 2, eval_dataset=samples())
    assert isinstance(trainer.precision, Rounded)
    assert trainer.run_config.mixed_precision == "eighths"
    assert trainer.precision.entered.count("train") == 6
    assert trainer.precision.entered.count("evaluation") > 0
    assert Eighths.calls > 0


def test_a_run_in_a_format_of_ones_own_is_resumed_exactly(tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole", precision=Rounded)
    whole.train(samples(), 2, save_every=1)
    cut = make_trainer(tmp_path / "cut", CutAt(4), precision=Rounded)
    with pytest.raises(CutError):
        cut.train(samples(), 2, save_every=1)
    resumed = make_trainer(tmp_path / "cut", precision=Rounded)
    resumed.train(samples(), 2, save_every=1, resume="auto")
    assert resumed.this_run.state.began_at in (3, 4)
    assert_same_bits(state_of(whole), state_of(resumed))


def test_what_makes_no_precision_is_refused() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=r"made 'half'; return a treadle\.precision\.Precision"):
        Trainer(model, None, None, precision=lambda device: "half")  # type: ignore[arg-type, return-value]


def test_loss_scaling_is_refused_beside_a_format_of_ones_own() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="loss_scaling is for precision='fp16', not for a precision of your own"):
        Trainer(model, None, None, precision=Rounded, loss_scaling=LossScaling())
