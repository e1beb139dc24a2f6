"""Number formats, by themselves and in a run."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle.errors import ConfigError
from treadle.precision import Precision
from treadle.trainer import Trainer

CPU = torch.device("cpu")
INPUTS = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(INPUTS, INPUTS @ torch.tensor([[1.0], [-2.0]]))


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"precision='fp64' is unknown; use one of \['bf16', 'fp16', 'fp32'\]"):
        Precision("fp64", CPU)


@pytest.mark.parametrize(
    ("kind", "dtype", "plain", "scales"),
    [
        ("fp32", torch.float32, True, False),
        ("bf16", torch.bfloat16, False, False),
        ("fp16", torch.float16, False, True),
    ],
)
def test_a_forward_pass_runs_in_the_format_asked_for(kind: str, dtype: torch.dtype, plain: bool, scales: bool) -> None:
    precision = Precision(kind, CPU)
    with precision.autocast():
        output = nn.Linear(2, 2)(torch.ones(1, 2))
    assert output.dtype == dtype
    assert precision.plain is plain
    assert (precision.scaler is not None) is scales


def scaled(precision: Precision, scale: float) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    parameter = nn.Parameter(torch.tensor([1.0]))
    return parameter, torch.optim.SGD([parameter], lr=0.5)


def test_gradients_are_unscaled_once_for_each_update() -> None:
    precision = Precision("fp16", CPU)
    parameter, optimizer = scaled(precision, 8.0)
    for expected in (0.0, -1.0):
        assert precision.scaler is not None
        precision.scaler.scale(parameter.sum() * 2).backward()
        precision.unscale(optimizer)
        precision.unscale(optimizer)
        assert parameter.grad is not None
        assert parameter.grad.item() == 2.0
        precision.step(optimizer)
        optimizer.zero_grad()
        assert parameter.item() == expected


def test_a_step_that_overflows_is_left_out_and_lowers_the_scale() -> None:
    precision = Precision("fp16", CPU)
    parameter, optimizer = scaled(precision, 8.0)
    assert precision.scaler is not None
    precision.scaler.scale(parameter.sum() * float("inf")).backward()
    precision.step(optimizer)
    assert parameter.item() == 1.0
    assert precision.scaler.get_scale() == 4.0


def test_the_state_of_the_scaler_is_kept() -> None:
    precision, other = Precision("fp16", CPU), Precision("fp16", CPU)
    parameter, optimizer = scaled(precision, 8.0)
    assert precision.scaler is not None
    precision.scaler.scale(parameter.sum() * float("inf")).backward()
    precision.step(optimizer)
    other.load_state_dict(precision.state_dict())
    assert other.scaler is not None
    assert other.scaler.get_scale() == 4.0
    assert other.state_dict() == precision.state_dict()


def test_a_format_without_a_scaler_has_nothing_to_keep() -> None:
    assert Precision("bf16", CPU).state_dict() == {"kind": "bf16", "scaler": None}
    fresh = Precision("fp16", CPU)
    before = fresh.state_dict()
    fresh.load_state_dict(Precision("fp32", CPU).state_dict())
    assert fresh.state_dict() == before


def trained(precision: str, **kwargs: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=(), device="cpu", precision=precision, **kwargs)
    if trainer.precision.scaler is not None:
        trainer.precision.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    trainer.train(DATA, 3, train_dataloader_kwargs={"shuffle": False})
    return trainer


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_run_in_half_precision_is_equal_to_the_loop_written_by_hand(precision: str, dtype: torch.dtype) -> None:
    trainer = trained(precision)
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled=precision == "fp16")
    for _ in range(3):
        for inputs, targets in zip(INPUTS.split(8), DATA.tensors[1].split(8), strict=True):
            with torch.autocast("cpu", dtype=dtype):
                loss = nn.functional.mse_loss(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert torch.equal(trainer.model.weight, model.weight)
    assert trainer.model.weight.dtype == torch.float32


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_what_single_precision_learns(precision: str) -> None:
    half, single = trained(precision), trained("fp32")
    assert torch.allclose(half.model.weight, single.model.weight, atol=0.02)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_leaving_out_bad_steps_changes_nothing_where_there_are_none(precision: str) -> None:
    plain, gated = trained(precision), trained(precision, on_nonfinite="skip")
    assert torch.equal(gated.model.weight, plain.model.weight)


def test_predictions_in_half_precision_come_back_in_single() -> None:
    assert trained("bf16").predict(DATA).dtype == torch.float32


def test_predictions_in_double_precision_stay_in_double() -> None:
    model = nn.Linear(2, 1).double()
    trainer = Trainer(model, nn.MSELoss(), None, callbacks=(), device="cpu")
    inputs = INPUTS.double()
    with torch.no_grad():
        assert torch.equal(trainer.predict(TensorDataset(inputs)), model(inputs))
