"""How products of fp32 numbers are rounded: a setting of the trainer that ends with the run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from tests.interrupting import make_trainer, samples
from treadle import TrainerCallback
from treadle.errors import ConfigError
from treadle.precision import SinglePrecision
from treadle.precision.tf32 import rounding

BACKENDS: Any = torch.backends


def state() -> list[Any]:
    return [
        BACKENDS.cuda.matmul.fp32_precision,
        BACKENDS.mkldnn.matmul.fp32_precision,
        BACKENDS.cudnn.conv.fp32_precision,
        BACKENDS.cudnn.rnn.fp32_precision,
    ]


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    named, tf32 = torch.get_float32_matmul_precision(), BACKENDS.cudnn.allow_tf32
    yield
    BACKENDS.cudnn.allow_tf32 = tf32
    torch.set_float32_matmul_precision(named)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"matmul_precision": "tf32"}, "matmul_precision='tf32' is unknown; use one of ('highest', 'high', 'medium')"),
        ({"matmul_precision": "hihg"}, "matmul_precision='hihg' is unknown; did you mean 'high'?"),
        ({"convolution_precision": "medium"}, "convolution_precision='medium' is unknown; use one of ('highest',"),
    ],
)
def test_an_unknown_choice_is_refused_when_the_trainer_is_built(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_trainer(None, **arguments)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("matmul", "cuda"), [("highest", "ieee"), ("high", "tf32"), ("medium", "tf32")])
def test_matrices_are_multiplied_as_asked_and_afterwards_as_before(matmul: str, cuda: str) -> None:
    before = state()
    with SinglePrecision(matmul):
        assert torch.get_float32_matmul_precision() == matmul
        assert BACKENDS.cuda.matmul.fp32_precision == cuda
    assert state() == before
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(("convolution", "cudnn"), [("highest", "ieee"), ("high", "tf32")])
@pytest.mark.parametrize("tf32", [True, False])
def test_convolutions_are_computed_as_asked_and_afterwards_as_before(convolution: str, cudnn: str, tf32: bool) -> None:
    BACKENDS.cudnn.allow_tf32 = tf32
    before = state()
    with SinglePrecision(convolution=convolution):
        assert rounding()["convolution"] == cudnn
    assert state() == before
    assert BACKENDS.cudnn.allow_tf32 is tf32


def test_without_a_choice_nothing_is_touched() -> None:
    torch.set_float32_matmul_precision("medium")
    before = state()
    with SinglePrecision():
        assert state() == before
    assert state() == before


def test_settings_made_in_torchs_newer_way_come_back_too() -> None:
    BACKENDS.cuda.matmul.fp32_precision = "tf32"
    before = state()
    try:
        with SinglePrecision("highest"):
            assert BACKENDS.cuda.matmul.fp32_precision == "ieee"
        assert state() == before
    finally:
        BACKENDS.cuda.matmul.fp32_precision = "ieee"


def test_choices_can_be_nested() -> None:
    once, again = SinglePrecision("high"), SinglePrecision("medium")
    with once, again, once:
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"


class Looks(TrainerCallback):
    """Notes how products are rounded in the middle of things."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_train_step_start(self, trainer: Any, batch: Any = None, **kwargs: Any) -> None:
        self.seen.append(torch.get_float32_matmul_precision())

    def on_eval_step_start(self, trainer: Any, batch: Any = None, **kwargs: Any) -> None:
        self.seen.append(torch.get_float32_matmul_precision())


def test_training_evaluating_and_predicting_use_it_and_it_ends_with_them() -> None:
    looks = Looks()
    trainer = make_trainer(None, looks, matmul_precision="high")
    trainer.train(samples(), 1, eval_dataset=samples())
    trainer.evaluate(samples())
    assert set(looks.seen) == {"high"}
    assert len(looks.seen) == 9
    assert torch.get_float32_matmul_precision() == "highest"


def test_it_ends_with_a_run_that_fails() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, inputs: Any) -> Any:
            raise RuntimeError("no")

    trainer = make_trainer(None, build=Failing, matmul_precision="medium", convolution_precision="highest")
    before = state()
    with pytest.raises(RuntimeError, match="no"):
        trainer.train(samples(), 1)
    assert state() == before


def test_the_choice_is_in_the_config_and_what_is_in_force_in_the_manifest(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, matmul_precision="high", convolution_precision="highest")
    trainer.train(samples(), 1)
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert (config["matmul_precision"], config["convolution_precision"]) == ("high", "highest")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["environment"]["fp32 products"] == {"matmul": "tf32", "convolution": "ieee"}


def test_a_run_that_goes_on_with_another_choice_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path, matmul_precision="high").train(samples(), 1)
    make_trainer(tmp_path).train(samples(), 2, resume="auto")
    said = capsys.readouterr().out
    assert "resumed, but not bit for bit: fp32 products.matmul: tf32 in the checkpoint, ieee now" in said
