"""Losses that are scaled for fp16: the scale itself, and updates whose gradients overflowed."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from tests.execution.recording import TapeRecorder
from tests.guards.no_sync import DEVICES, host_counters, no_sync
from tests.interrupting import assert_same_bits, check, make_trainer, momentum, samples, simply, state_of
from tests.spoiling import IN_ORDER, seeded, without
from treadle import Phase, Trainer
from treadle.callbacks import GradientNormMonitor, ModelEmaCallback
from treadle.errors import ConfigError
from treadle.execution import Execution, GraphExecution
from treadle.loop.nonfinite import guarded_step
from treadle.phase import alternate
from treadle.precision import LossScaler, LossScaling

CPU = torch.device("cpu")
QUIET = LossScaling(initial=64.0)
"""A scale at which small models never overflow by themselves, and lose no bit either."""


# The scale ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial": 0}, "LossScaling: initial=0 must be a number above 0"),
        ({"minimum": -1.0}, "LossScaling: minimum=-1.0 must be a number above 0"),
        ({"growth_interval": 0.5}, "LossScaling: growth_interval=0.5 must be a whole number above 0"),
        ({"patience": True}, "LossScaling: patience=True must be a whole number above 0"),
        ({"initial": 1.0, "minimum": 2.0}, "LossScaling: initial=1.0 is below minimum=2.0"),
        ({"fallback": "bf61"}, "LossScaling: fallback='bf61' is unknown; did you mean 'bf16'?"),
        (
            {"fallback": None},
            "LossScaling: fallback=None is unknown; use one of ('auto', 'bf16', 'fp32', 'raise')",
        ),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LossScaling(**arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("loss", "scale"),
    [
        (0.0, 65536.0),
        (1e-3, 65536.0),
        (16.0, 65536.0),
        (17.0, 32768.0),
        (-17.0, 32768.0),
        (1000.0, 1024.0),
        (1e6, 1.0),
        (1e9, 2.0**-10),
        (1e30, 2.0**-24),
        (math.nan, 65536.0),
        (math.inf, 65536.0),
    ],
)
def test_the_first_scale_is_chosen_from_the_first_loss(loss: float, scale: float) -> None:
    scaler = LossScaler(CPU)
    assert not scaler.settled
    scaled = scaler.scale(torch.tensor(loss))
    assert scaler.settled
    assert scaler.get_scale() == scale
    assert scaled.item() == pytest.approx(loss * scale, nan_ok=True)
    scaler.scale(torch.tensor(1.0))
    assert scaler.get_scale() == scale


def test_a_first_scale_that_is_given_is_taken() -> None:
    scaler = LossScaler(CPU, LossScaling(initial=3.0))
    assert scaler.settled
    assert scaler.scale(torch.tensor(1e9)).item() == pytest.approx(3e9)


def test_processes_agree_on_the_first_scale_by_the_largest_loss() -> None:
    def agree(size: Tensor) -> None:
        size.fill_(1e6)

    scaler = LossScaler(CPU, agree=agree)
    scaler.scale(torch.tensor(2.0))
    assert scaler.get_scale() == 1.0


def test_a_loss_in_half_precision_is_scaled_in_single() -> None:
    scaler = LossScaler(CPU, LossScaling(initial=65536.0))
    scaled = scaler.scale(torch.tensor([10.0], dtype=torch.float16))
    assert (scaled.dtype, scaled.item()) == (torch.float32, 655360.0)
    assert scaler.scale(torch.tensor(10.0, dtype=torch.float64)).dtype == torch.float64


def test_the_scale_moves_as_that_of_torch() -> None:
    ours = LossScaler(CPU, LossScaling(initial=1024.0, growth_interval=3))
    torchs = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = SGD(weights[1:], lr=0.1)
    for step in range(40):
        value = math.inf if step in (2, 3, 11, 30) else 0.5
        for weight, scaler in zip(weights, (ours, torchs), strict=True):
            scaler.scale((weight * value).sum()).backward()  # type: ignore[attr-defined]
        ours.unscale(weights[:1])
        ours.update()
        torchs.unscale_(optimizer)
        torchs.update()
        assert_same_bits([weights[0].grad], [weights[1].grad])
        assert ours.get_scale() == torchs.get_scale()
        weights[0].grad = weights[1].grad = None


def test_the_scale_does_not_become_smaller_than_its_minimum() -> None:
    scaler = LossScaler(CPU, LossScaling(initial=4.0, minimum=1.0, patience=3))
    weight = nn.Parameter(torch.ones(2))
    scales, exhausted = [], []
    for _ in range(6):
        weight.grad = torch.tensor([math.inf, 1.0])
        scaler.unscale([weight])
        scaler.update()
        scales.append(scaler.get_scale())
        exhausted.append(scaler.is_exhausted())
    assert scales == [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert exhausted == [False, False, False, False, True, True]
    weight.grad = torch.ones(2)
    scaler.unscale([weight])
    scaler.update()
    assert not scaler.is_exhausted()


def test_weights_without_a_gradient_and_sparse_gradients_are_unscaled_too() -> None:
    scaler = LossScaler(CPU, LossScaling(initial=8.0))
    embedding = nn.Embedding(4, 2, sparse=True)
    idle = nn.Parameter(torch.ones(1))
    scaler.scale(embedding(torch.tensor([1, 1, 2])).sum()).backward()
    scaler.unscale([embedding.weight, idle])
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.to_dense().tolist() == [[0, 0], [2, 2], [1, 1], [0, 0]]
    assert scaler.overflow.item() == 0


def test_the_state_of_the_scaler_is_restored_in_place() -> None:
    one, other = LossScaler(CPU), LossScaler(CPU)
    one.scale(torch.tensor(1e6))
    one.overflow.fill_(1)
    one.update()
    kept = [tensor.data_ptr() for tensor in other.tensors()]
    other.load_state_dict(one.state_dict())
    assert_same_bits(other.state_dict(), one.state_dict())
    assert other.settled
    assert [tensor.data_ptr() for tensor in other.tensors()] == kept


# Updates ----------------------------------------------------------------------------------------------------


class Overflowing(Trainer):
    """A trainer in fp16 whose gradient overflows, while its loss is fine, where the second input is exactly 7."""

    def calculate_train_batch_loss(self, batch: Any) -> Any:
        output = super().calculate_train_batch_loss(batch)
        bad = (batch[0][:, 1] == 7).any()
        # The gradient of sqrt at 0 is infinite; times 0 it adds nothing to the loss.
        weight = next(iter(self.model.parameters()))
        nothing = torch.sqrt(torch.where(bad, weight * 0, 1.0).sum())
        return {**output, "loss": output["loss"] + nothing - torch.where(bad, 0.0, nothing.detach())}


def overflowing_at(*steps: int) -> Any:
    inputs, targets = samples().tensors
    inputs = inputs.clone()
    for step in steps:
        inputs[4 * step - 2, 1] = 7
    return torch.utils.data.TensorDataset(inputs, targets)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def train(data: Any, *callbacks: Any, build: Any = normalised, **kwargs: Any) -> Any:
    run = {
        name: kwargs.pop(name) for name in ("clip_norm", "gradient_accumulation_steps", "log_every") if name in kwargs
    }
    options = {"precision": "fp16", "kind": Overflowing, "loss_scaling": QUIET, **kwargs}
    trainer = make_trainer(options.pop("run_dir", None), *callbacks, build=partial(seeded, build), **options)
    trainer.train(data, num_epochs=1, **IN_ORDER, **run)
    return trainer


OPTIMIZERS: dict[str, Any] = {
    "SGD": partial(SGD, lr=0.05, weight_decay=0.1),
    "momentum": momentum,
    "fused SGD": partial(SGD, lr=0.05, weight_decay=0.1, fused=True),
    "fused momentum": partial(SGD, lr=0.05, momentum=0.9, fused=True),
    "fused dampened": partial(SGD, lr=0.05, momentum=0.9, dampening=0.5, fused=True),
    "AdamW": partial(AdamW, lr=0.05),
    "fused AdamW": partial(AdamW, lr=0.05, fused=True),
    "foreach AdamW": partial(AdamW, lr=0.05, foreach=True),
    "foreach momentum": partial(SGD, lr=0.05, momentum=0.9, foreach=True),
    "fused Adagrad": partial(torch.optim.Adagrad, lr=0.05, fused=True),
    "NAdam": partial(torch.optim.NAdam, lr=0.05),
    "Rprop": torch.optim.Rprop,
}


@pytest.mark.parametrize("bad", [(1,), (4,), (6,), (1, 2, 5)], ids=str)
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_an_update_that_overflowed_leaves_no_trace(name: str, bad: tuple[int, ...]) -> None:
    left_out = train(overflowing_at(*bad), optimizer=OPTIMIZERS[name])
    assert_same_bits(state_of(left_out), state_of(train(without(*bad), optimizer=OPTIMIZERS[name])))
    assert left_out.precision.scaler.get_scale() == 64.0 / 2 ** len(bad)
    assert left_out.storage.series("skipped_steps").values[-1] == len(bad)


def test_momentum_of_a_fused_optimizer_whose_first_update_overflows_begins_at_zero() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = SGD([weight], lr=0.5, momentum=0.9, fused=True)
    weight.grad = torch.full((4,), math.nan)
    guarded_step(optimizer, torch.tensor(1.0))
    assert optimizer.state[weight]["momentum_buffer"].tolist() == [0.0] * 4
    weight.grad = torch.ones(4)
    guarded_step(optimizer, torch.tensor(0.0))
    assert weight.tolist() == [0.5] * 4


def test_an_optimizer_that_counts_on_the_host_is_asked_there() -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
    for bad in (0.0, 1.0, 0.0):
        embedding(torch.tensor([1, 2])).sum().backward()
        guarded_step(optimizer, torch.tensor(bad))
        optimizer.zero_grad()
    assert optimizer.state[embedding.weight]["step"] == 2


def test_a_fused_step_that_is_overridden_is_not_trusted_with_the_flag() -> None:
    class Careless(SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            for group in self.param_groups:
                for weight in group["params"]:
                    weight.data.sub_(weight.grad)

    weight = nn.Parameter(torch.ones(2))
    optimizer = Careless([weight], lr=0.1, fused=True)
    weight.grad = torch.full((2,), math.nan)
    guarded_step(optimizer, torch.tensor(1.0))
    assert weight.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("settings", [{"clip_norm": 0.1}, {"gradient_accumulation_steps": 2}])
def test_an_update_that_overflowed_leaves_no_trace_with_clipping_and_accumulation(settings: dict[str, Any]) -> None:
    gone = (3,) if "clip_norm" in settings else (3, 4)
    left_out = train(overflowing_at(3), **settings)
    assert_same_bits(state_of(left_out), state_of(train(without(*gone), **settings)))


def test_an_overflow_is_no_reason_to_end_the_run_where_the_norm_of_the_gradient_is_known() -> None:
    trainer = train(overflowing_at(3), GradientNormMonitor, clip_norm=1.0, log_every=1)
    norms = trainer.storage.series("gradient_norm").values
    assert [math.isfinite(norm) for norm in norms] == [True, True, False, True, True, True]


def test_an_overflow_is_no_reason_to_roll_back(tmp_path: Path) -> None:
    trainer = train(overflowing_at(3), on_nonfinite="rollback", run_dir=tmp_path, log_every=1)
    assert not trainer.this_run.updater.skipped.steps
    assert trainer.storage.series("skipped_steps").values[-1] == 1


def test_an_average_does_not_move_with_an_update_that_overflowed(tmp_path: Path) -> None:
    def average(data: Any) -> Any:
        callback = ModelEmaCallback(decay=0.5, save_path=tmp_path / "average.pt")
        train(data, callback)
        return callback.ema_model.module.state_dict()

    assert_same_bits(average(overflowing_at(4)), average(without(4)))


def test_the_loss_of_an_update_that_overflowed_is_known_all_the_same() -> None:
    trainer = train(overflowing_at(3), log_every=1)
    assert len(trainer.storage.series("train_loss").values) == 6
    assert trainer.storage.series("loss_scale").values[:6] == [64.0] * 2 + [32.0] * 4


@pytest.mark.parametrize("clip", [None, 0.05])
def test_each_optimizer_of_each_phase_unscales_clips_and_steps_in_that_order(clip: float | None) -> None:
    class Pair(Trainer):
        def phases(self, epoch: int) -> Any:
            stream, loss = self._train_dataloader, self.calculate_train_batch_loss
            assert stream is not None
            one = Phase("one", stream, loss, self.optimizer["one"])
            yield from alternate(one, Phase("two", stream, loss, self.optimizer["two"], steps=1, reuse=True))

    def parts() -> tuple[Any, dict[str, Any]]:
        model: Any = seeded(lambda: nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)))
        return model, {"one": momentum(model[0].parameters()), "two": AdamW(model[1].parameters(), lr=0.05)}

    model, optimizers = parts()
    scaling = LossScaling(initial=256.0, growth_interval=4)
    trainer: Any = Pair(
        model, nn.MSELoss(), optimizers, callbacks=(), device="cpu", precision="fp16", loss_scaling=scaling
    )
    trainer.train(samples(), 1, clip_norm=clip, **IN_ORDER)

    model, optimizers = parts()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=4)
    inputs, targets = samples().tensors
    for batch in range(6):
        rows = slice(4 * batch, 4 * batch + 4)
        for optimizer in optimizers.values():
            with torch.autocast("cpu", dtype=torch.float16):
                outputs = model(inputs[rows])
            scaler.scale(nn.functional.mse_loss(outputs.float(), targets[rows])).backward()
            scaler.unscale_(optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], clip)
            scaler.step(optimizer)
            scaler.update()
            model.zero_grad()
    assert_same_bits(trainer.model.state_dict(), model.state_dict())
    assert trainer.precision.scaler.get_scale() == scaler.get_scale()


def test_a_run_in_fp16_goes_on_exactly_after_cuts_its_scale_included(tmp_path: Path) -> None:
    def make(run_dir: Path, *callbacks: Any) -> Any:
        return make_trainer(run_dir, *callbacks, precision="fp16", loss_scaling=LossScaling(growth_interval=2))

    cut, whole = check(tmp_path, make, simply)
    assert_same_bits(cut.precision.state_dict(), whole.precision.state_dict())
    assert whole.storage.series("skipped_steps").values[-1] > 0


def test_the_rules_are_in_the_config_of_a_run_in_fp16() -> None:
    assert train(samples()).run_config.to_dict()["loss_scaling"] == {
        "initial": 64.0,
        "growth_interval": 2000,
        "minimum": 2.0**-24,
        "patience": 8,
        "fallback": "auto",
    }
    single = train(samples(), precision="fp32", loss_scaling=None)
    assert single.run_config.to_dict()["loss_scaling"] is None


def test_a_second_run_begins_with_a_scale_of_its_own() -> None:
    trainer = train(overflowing_at(3))
    trainer.train(samples(), 1)
    assert trainer.precision.scaler.get_scale() == 64.0


# Nobody waits -------------------------------------------------------------------------------------------------


class Guarded(Overflowing):
    """A trainer whose updates must not read the device."""

    guarded = 0

    def update(self, phase: Phase, window: list[Any]) -> None:
        with no_sync(self.device.type, exempt=host_counters(self.optimizer)):
            super().update(phase, window)
        self.guarded += 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("settings", [{}, {"clip_norm": 0.1}, {"gradient_accumulation_steps": 2}], ids=str)
@pytest.mark.parametrize(
    "optimizer",
    [name for name in OPTIMIZERS if name not in ("fused dampened", "fused Adagrad", "NAdam", "Rprop")],
)
def test_an_update_in_fp16_reads_nothing(optimizer: str, settings: dict[str, Any], device: str) -> None:
    options = {"optimizer": OPTIMIZERS[optimizer], "device": device, "loss_scaling": None, "build": normalised}
    trainer = train(overflowing_at(1, 4), kind=Guarded, **options, **settings)
    assert trainer.guarded == (3 if "gradient_accumulation_steps" in settings else 6)
    assert trainer.storage.series("skipped_steps").values[-1] > 0


class Recorded(Overflowing):
    """A trainer whose updates are recorded on the CPU and replayed."""

    def create_execution(self) -> Execution:
        self.recorder = TapeRecorder()
        return GraphExecution(self, self.recorder, required=True)


@pytest.mark.parametrize("settings", [{}, {"clip_norm": 0.1}], ids=str)
@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
@pytest.mark.parametrize("name", ["momentum", "fused AdamW"])
def test_a_recorded_update_leaves_overflows_out_as_an_ordinary_one(
    name: str, on_nonfinite: str, settings: dict[str, Any]
) -> None:
    options = {"optimizer": OPTIMIZERS[name], "on_nonfinite": on_nonfinite, **settings}
    data = overflowing_at(1, 5)
    eager = train(data, **options)
    recorded = train(data, kind=Recorded, **options)
    assert recorded.recorder.replays > 0
    for one in (recorded, eager):
        one.optimizer.param_groups[0]["capturable"] = None  # a recorded step needs it
    assert_same_bits(state_of(recorded), state_of(eager))
    assert recorded.precision.scaler.get_scale() == eager.precision.scaler.get_scale()
    assert recorded.storage.series("skipped_steps").values[-1] == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("settings", [{}, {"clip_norm": 0.1}], ids=str)
@pytest.mark.parametrize("name", ["fused momentum", "fused AdamW", "foreach momentum", "foreach AdamW"])
def test_on_cuda_a_recorded_update_in_fp16_leaves_overflows_out_as_an_ordinary_one(
    name: str, settings: dict[str, Any]
) -> None:
    def run(execution: str) -> Any:
        options = {"optimizer": OPTIMIZERS[name], "device": "cuda", "execution": execution, **settings}
        return train(overflowing_at(1, 5), **options)

    eager, recorded = run("eager"), run("graph")
    assert recorded.this_run.execution.count > 0
    for one, other in zip(eager.model.state_dict().values(), recorded.model.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert recorded.precision.scaler.get_scale() == eager.precision.scaler.get_scale() == 16.0
    assert recorded.storage.series("skipped_steps").values[-1] == 2
