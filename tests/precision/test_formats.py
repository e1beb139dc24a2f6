"""Number formats, by themselves and in a run."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle.errors import ConfigError
from treadle.precision import LossScaling, Precision
from treadle.precision.formats import best_kind
from treadle.trainer import Trainer

CPU = torch.device("cpu")
INPUTS = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(INPUTS, INPUTS @ torch.tensor([[1.0], [-2.0]]))
GENTLE = LossScaling(initial=16.0)


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        Precision("fp64", CPU)
    assert str(caught.value) == "precision='fp64' is unknown; use one of ('auto', 'fp32', 'bf16', 'fp16')"


def test_scaling_of_a_loss_that_is_not_scaled_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Precision("bf16", CPU, LossScaling())
    assert str(caught.value) == "loss_scaling is for precision='fp16', not for 'bf16'; leave it out"


def test_scaling_that_is_a_number_is_refused() -> None:
    number: Any = 1024.0
    with pytest.raises(ConfigError) as caught:
        Precision("fp16", CPU, number)
    assert str(caught.value) == "loss_scaling=1024.0; pass a LossScaling, such as LossScaling(initial=1024.0)"


@pytest.mark.parametrize(
    ("kind", "dtype", "plain", "scales"),
    [
        ("fp32", torch.float32, True, False),
        ("bf16", torch.bfloat16, False, False),
        ("fp16", torch.float16, False, True),
        ("auto", torch.float32, True, False),
    ],
)
def test_a_forward_pass_runs_in_the_format_asked_for(kind: str, dtype: torch.dtype, plain: bool, scales: bool) -> None:
    precision = Precision(kind, CPU)
    with precision.autocast():
        output = nn.Linear(2, 2)(torch.ones(1, 2))
    assert output.dtype == dtype
    assert precision.plain is plain
    assert (precision.scaler is not None) is scales


@pytest.mark.parametrize(("capability", "kind"), [((7, 5), "fp32"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_auto_is_bf16_on_cuda_devices_with_units_for_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kind: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert best_kind(torch.device("cuda", 0)) == kind


def test_the_format_that_auto_stands_for_is_what_the_run_says() -> None:
    trainer = trained("auto")
    assert (trainer.precision.asked, trainer.precision.kind) == ("auto", "fp32")
    assert trainer.run_config.mixed_precision == "fp32"


def test_a_format_without_a_scaler_has_nothing_to_keep() -> None:
    assert Precision("bf16", CPU).state_dict() == {"kind": "bf16", "scaler": None, "fallback": None}
    fresh = Precision("fp16", CPU)
    before = dict(fresh.state_dict()["scaler"])
    fresh.load_state_dict(Precision("fp32", CPU).state_dict())
    assert fresh.state_dict()["scaler"] == before


def test_weights_in_half_precision_are_refused_in_fp16() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).half()
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), precision="fp16", device="cpu")
    with pytest.raises(ConfigError) as caught:
        trainer.train(DATA, 1)
    assert str(caught.value) == (
        "precision='fp16' keeps weights in fp32, but 0.weight and 3 more of Sequential are float16; call model.float() "
        "before building the optimizer"
    )


def trained(precision: str, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if precision == "fp16":
        kwargs.setdefault("loss_scaling", GENTLE)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=(), device="cpu", precision=precision, **kwargs)
    trainer.train(DATA, 3, train_dataloader_kwargs={"shuffle": False})
    return trainer


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
@pytest.mark.parametrize("loss_func", [nn.functional.mse_loss, nn.functional.smooth_l1_loss])
def test_a_run_in_half_precision_is_equal_to_the_loop_written_by_hand(
    precision: str, dtype: torch.dtype, loss_func: Any
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    trainer = Trainer(
        model,
        loss_func,
        torch.optim.SGD(model.parameters(), lr=0.05),
        callbacks=(),
        device="cpu",
        precision=precision,
        loss_scaling=GENTLE if precision == "fp16" else None,
    )
    trainer.train(DATA, 3, train_dataloader_kwargs={"shuffle": False})
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled=precision == "fp16")
    for _ in range(3):
        for inputs, targets in zip(INPUTS.split(8), DATA.tensors[1].split(8), strict=True):
            with torch.autocast("cpu", dtype=dtype):
                outputs = model(inputs)
            loss = loss_func(outputs.float(), targets)
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


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_loss_function_gets_outputs_in_single_precision_and_callbacks_get_them_as_they_are(precision: str) -> None:
    seen: list[torch.dtype] = []

    def loss_func(outputs: Any, targets: Any) -> Any:
        seen.append(outputs.dtype)
        return (outputs - targets).abs().sum()

    model = nn.Linear(2, 1)
    trainer = Trainer(
        model, loss_func, torch.optim.SGD(model.parameters(), lr=0.05), callbacks=(), device="cpu", precision=precision
    )
    with trainer.precision.autocast():
        output = trainer.calculate_train_batch_loss(DATA[:4])
    assert seen == [torch.float32]
    assert output["loss"].dtype == torch.float32
    assert output["model_outputs"].dtype in (torch.bfloat16, torch.float16)
    trainer.evaluate(DATA)
    assert set(seen) == {torch.float32}


def test_outputs_in_tuples_and_dicts_are_given_to_the_loss_in_single_precision_too() -> None:
    half = torch.ones(2, dtype=torch.float16)
    given: list[Any] = []
    Precision("fp16", CPU).for_loss(lambda outputs, targets: given.append(outputs))((half, [half], {"a": half}), None)
    ((one, (other,), named),) = given
    assert {one.dtype, other.dtype, named["a"].dtype} == {torch.float32}


def test_in_single_precision_the_loss_function_is_called_as_it_is() -> None:
    loss_func = nn.MSELoss()
    assert Precision("fp32", CPU).for_loss(loss_func) is loss_func
    assert Precision("bf16", CPU).for_loss(None) is None


def test_predictions_in_half_precision_come_back_in_single() -> None:
    assert trained("bf16").predict(DATA).dtype == torch.float32


def test_predictions_in_double_precision_stay_in_double() -> None:
    model = nn.Linear(2, 1).double()
    trainer = Trainer(model, nn.MSELoss(), None, callbacks=(), device="cpu")
    inputs = INPUTS.double()
    with torch.no_grad():
        assert torch.equal(trainer.predict(TensorDataset(inputs)), model(inputs))


class Outputs(OrderedDict[str, torch.Tensor]):
    """Outputs by name, as models of Hugging Face return them."""

    @property
    def scores(self) -> torch.Tensor:
        return self["scores"]


class Naming(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> Outputs:  # type: ignore[override]
        return Outputs(scores=super().forward(inputs))


def test_a_loss_gets_outputs_of_their_own_type_in_single_precision() -> None:
    seen: list[torch.dtype] = []

    def loss(outputs: Outputs, targets: torch.Tensor) -> torch.Tensor:
        seen.append(outputs.scores.dtype)
        return (outputs.scores - targets).square().mean()

    model = Naming(2, 1)
    trainer = Trainer(model, loss, torch.optim.SGD(model.parameters(), lr=0.01), callbacks=(), precision="bf16")
    trainer.train(DATA, num_epochs=1, per_device_batch_size=24)
    assert seen == [torch.float32]
