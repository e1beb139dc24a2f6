"""Losses and gradients that are nan or infinite: raise and skip. Going back is in test_rollback.py."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, TensorDataset

from tests.guards.no_sync import DEVICES, host_counters, no_sync
from tests.interrupting import (
    Rates,
    adamw,
    assert_same_bits,
    assert_same_run,
    checkpoint_steps,
    make_trainer,
    metric_lines,
    momentum,
    plain_network,
    samples,
    state_of,
    train_through,
)
from tests.spoiling import IN_ORDER, BadGradient, seeded, spoilt, with_bad_gradient, without
from treadle import DEFAULT_CALLBACKS, Phase
from treadle.callbacks import GradientNormMonitor, ModelEmaCallback
from treadle.checkpoint import CheckpointStore, Policy
from treadle.data.loaders import DEFAULT_SIZE
from treadle.errors import ConfigError, NonFiniteError
from treadle.loop.nonfinite import guarded_step
from treadle.precision import LossScaler, LossScaling
from treadle.trainer import Trainer


def normalised() -> nn.Module:
    """A network with buffers that move, and without randomness."""
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def train(data: Any, *callbacks: Any, build: Any = normalised, **kwargs: Any) -> Any:
    trained = {name: kwargs.pop(name) for name in list(kwargs) if name not in BUILT}
    trainer = make_trainer(kwargs.pop("run_dir", None), *callbacks, build=partial(seeded, build), **kwargs)
    trainer.train(data, **{"num_epochs": 1, **IN_ORDER, **trained})
    return trainer


BUILT = (
    "run_dir",
    "device",
    "optimizer",
    "kind",
    "precision",
    "on_nonfinite",
    "loss_func",
    "loss_reduction",
    "checkpoints",
)
skip = partial(train, on_nonfinite="skip")


# Raise ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("callbacks", [(), DEFAULT_CALLBACKS], ids=["none", "default"])
@pytest.mark.parametrize("log_every", [1, 2, 4, 50])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_first_bad_step_is_named_however_long_the_interval_between_logs(
    callbacks: Any, log_every: int, value: float
) -> None:
    with pytest.raises(
        NonFiniteError, match=rf"^loss is {value} at step 3 \(\S+ at step 2\): 1 of the 4 values in its"
    ):
        train(spoilt(3, value=value), *callbacks, log_every=log_every)


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"train_dataloader_kwargs": None}])
@pytest.mark.parametrize("log_every", [1, 50])
def test_data_that_is_not_finite_is_named_and_not_the_learning_rate(options: Any, log_every: int) -> None:
    inputs, targets = samples().tensors
    inputs = inputs.clone()
    inputs[13] = math.nan
    with pytest.raises(NonFiniteError) as caught:
        train(TensorDataset(inputs, targets), log_every=log_every, **options)
    assert str(caught.value).endswith(
        ": 2 of the 8 values in its inputs are nan or infinite; clean the data, or leave such updates out by "
        "on_nonfinite='skip'"
    )


def test_data_that_is_not_finite_is_named_in_a_later_epoch() -> None:
    data = samples()

    class Later(Trainer):
        def train_epoch_start(self) -> None:
            super().train_epoch_start()
            if self.progress.epoch == 1:
                data.tensors[0][9] = math.inf

    with pytest.raises(NonFiniteError, match=r"at step 9 \(.*: 2 of the 8 values in its inputs are nan or infinite"):
        train(data, kind=Later, num_epochs=2)


def test_a_first_loss_that_is_not_finite_is_not_blamed_on_the_learning_rate() -> None:
    with pytest.raises(NonFiniteError, match="at step 1; no update was made yet, so it is not the learning rate"):
        train(samples(), loss_func=lambda outputs, targets: (outputs - targets).mean() * math.nan)


def test_data_that_cannot_be_read_again_is_not_judged() -> None:
    with pytest.raises(NonFiniteError, match=r"at step 3 \(\S+ at step 2\); lower the learning rate"):
        train(
            iter(DataLoader(spoilt(3), batch_size=4)), per_device_batch_size=DEFAULT_SIZE, train_dataloader_kwargs=None
        )


def test_the_loss_before_is_that_of_the_step_before() -> None:
    trainer = make_trainer(None, build=plain_network)
    inputs, targets = samples().tensors
    before = (trainer.model(inputs[:4]) - targets[:4]).square().mean().item()
    with pytest.raises(NonFiniteError, match=rf"loss is nan at step 2 \({before:.3g} at step 1\)"):
        trainer.train(spoilt(2), 1, **IN_ORDER)


def test_the_step_is_counted_over_epochs() -> None:
    class Later(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            output = super().calculate_train_batch_loss(batch)
            bad = self.progress.step + 1 == 9
            return {**output, "loss": output["loss"] * math.nan} if bad else output

    with pytest.raises(NonFiniteError, match="at step 9 "):
        train(samples(), kind=Later, num_epochs=3)


def test_no_checkpoint_is_made_of_weights_after_a_bad_step(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="at step 3 "):
        train(spoilt(3), run_dir=tmp_path, save_every=1)
    assert checkpoint_steps(tmp_path) == [1, 2]
    assert [row["step"] for row in metric_lines(tmp_path)][-1] == 3


def test_a_bad_step_is_seen_in_the_metrics_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError):
        train(spoilt(3), run_dir=tmp_path, log_every=1)
    assert [row["train_loss"] == "nan" for row in metric_lines(tmp_path)] == [False, False, True]


def test_a_gradient_that_is_not_finite_is_named_by_its_own_step_where_its_norm_is_known() -> None:
    with pytest.raises(NonFiniteError, match=r"^loss is nan at step 3\b"):
        train(with_bad_gradient(3), build=BadGradient, clip_norm=1e9)


def test_elsewhere_a_gradient_that_is_not_finite_is_named_by_the_first_loss_it_spoils() -> None:
    with pytest.raises(NonFiniteError, match=r"^loss is nan at step 4\b"):
        train(with_bad_gradient(3), build=BadGradient)


def test_a_gradient_that_is_not_finite_in_the_last_step_is_no_good_end(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"^the weights are not finite after step 6; "):
        train(with_bad_gradient(6), build=BadGradient, run_dir=tmp_path, save_every=1)
    assert checkpoint_steps(tmp_path) == [3, 4, 5]


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        make_trainer(None, on_nonfinite="ignore")
    assert str(caught.value) == "on_nonfinite='ignore' is unknown; use one of ('raise', 'skip', 'rollback')"


# Skip -----------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Any] = {
    "SGD": partial(torch.optim.SGD, lr=0.05, weight_decay=0.1),
    "momentum": momentum,
    "Nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "dampened": partial(torch.optim.SGD, lr=0.05, momentum=0.9, dampening=0.5),
    "AdamW": adamw,
    "fused AdamW": partial(torch.optim.AdamW, lr=0.05, fused=True),
    "foreach AdamW": partial(torch.optim.AdamW, lr=0.05, foreach=True),
    "AMSGrad": partial(torch.optim.Adam, lr=0.05, amsgrad=True),
    "NAdam": partial(torch.optim.NAdam, lr=0.05),
    "RAdam": partial(torch.optim.RAdam, lr=0.05),
    "Adamax": partial(torch.optim.Adamax, lr=0.05),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=0.1),
    "Adadelta": torch.optim.Adadelta,
    "RMSprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "Rprop": torch.optim.Rprop,
    "ASGD": partial(torch.optim.ASGD, lr=0.05, weight_decay=0.1),
}


@pytest.mark.parametrize("bad", [(1,), (4,), (6,), (1, 2, 5)], ids=str)
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_skipped_step_leaves_no_trace(name: str, bad: tuple[int, ...]) -> None:
    skipped = skip(spoilt(*bad), optimizer=OPTIMIZERS[name])
    assert_same_bits(state_of(skipped), state_of(train(without(*bad), optimizer=OPTIMIZERS[name])))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [(1,), (4,), (1, 2, 5)], ids=str)
def test_a_skipped_step_is_not_counted_by_an_optimizer_that_counts_on_the_host(
    bad: tuple[int, ...], device: str
) -> None:
    options = {"optimizer": partial(torch.optim.Adagrad, lr=0.05, lr_decay=0.5), "device": device}
    skipped = skip(spoilt(*bad), **options)
    assert_same_bits(state_of(skipped), state_of(train(without(*bad), **options)))
    assert {state["step"].item() for state in skipped.optimizer.state.values()} == {6 - len(bad)}


@pytest.mark.parametrize("bad", [0.0, 1.0])
def test_state_that_is_elsewhere_than_the_flag_is_kept_by_making_no_update(bad: float) -> None:
    # The weights are on `meta` in place of a GPU; there the flag is too, but here it has to be read.
    weight = nn.Parameter(torch.empty(2, device="meta"))
    optimizer = torch.optim.Adagrad([weight])
    weight.grad = torch.empty_like(weight)
    guarded_step(optimizer, torch.tensor(bad))
    assert optimizer.state[weight]["step"].item() == 1 - bad


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_any_value_that_is_not_finite_is_skipped(value: float) -> None:
    assert_same_bits(state_of(skip(spoilt(3, value=value))), state_of(train(without(3))))


def test_a_run_that_skips_nothing_has_the_bits_of_one_that_does_not_look() -> None:
    assert_same_bits(state_of(skip(samples())), state_of(train(samples())))


def test_a_window_with_one_bad_micro_batch_is_skipped_whole() -> None:
    skipped = skip(spoilt(3), gradient_accumulation_steps=2)
    assert skipped.progress.step == 3
    assert_same_bits(state_of(skipped), state_of(train(without(3, 4), gradient_accumulation_steps=2)))


def test_skipped_steps_are_counted_and_reported(tmp_path: Path) -> None:
    trainer = skip(spoilt(2, 5), run_dir=tmp_path, log_every=1)
    assert trainer.progress.step == 6
    assert [row["skipped_steps"] for row in metric_lines(tmp_path)] == [0, 1, 1, 1, 2, 2]


def test_a_skipped_step_stays_out_of_the_losses() -> None:
    skipped, reference = skip(spoilt(3)), train(without(3))
    losses = [trainer.run_history.get_metric_values("train_loss_epoch") for trainer in (skipped, reference)]
    assert losses[0] == losses[1]


def test_steps_that_were_skipped_count_as_steps_for_the_schedule() -> None:
    rates = Rates()
    skip(spoilt(2), rates, create_scheduler_fn=partial(ExponentialLR, gamma=0.5))
    assert rates.used == {step: 0.05 * 0.5 ** (step - 1) for step in range(1, 7)}


@pytest.mark.parametrize("bad", [1, 4, 6])
def test_an_average_does_not_move_with_a_skipped_step(tmp_path: Path, bad: int) -> None:
    def average(data: Any, **kwargs: Any) -> Any:
        callback = ModelEmaCallback(decay=0.5, save_path=tmp_path / "average.pt")
        train(data, callback, **kwargs)
        return callback.ema_model.module.state_dict()

    average_of_skipping = average(spoilt(bad), on_nonfinite="skip")
    reference = average(without(bad))
    assert average_of_skipping.keys() == reference.keys()
    for name, tensor in reference.items():
        torch.testing.assert_close(average_of_skipping[name], tensor, rtol=1e-6, atol=0)


def test_skipping_reads_nothing_from_the_device() -> None:
    class Guarded(Trainer):
        def update(self, phase: Phase, window: list[Any]) -> None:
            with no_sync("cpu", exempt=host_counters(self.optimizer)):
                super().update(phase, window)

    skipped = skip(spoilt(1, 4), kind=Guarded, gradient_accumulation_steps=2, clip_norm=1.0)
    assert skipped.storage.series("skipped_steps").values[-1] == 2


def test_skipping_works_with_clipping() -> None:
    for limit in ({"clip_norm": 0.1}, {"gradient_clip_value": 0.1}):
        assert_same_bits(state_of(skip(spoilt(3), **limit)), state_of(train(without(3), **limit)))


def test_an_infinite_gradient_that_was_clipped_to_a_finite_one_is_skipped_all_the_same() -> None:
    skipped = skip(spoilt(3, value=math.inf), gradient_clip_value=0.1)
    assert_same_bits(state_of(skipped), state_of(train(without(3), gradient_clip_value=0.1)))


def test_a_gradient_that_is_not_finite_is_skipped_though_the_loss_is() -> None:
    skipped = skip(with_bad_gradient(3), build=BadGradient)
    assert_same_bits(state_of(skipped), state_of(train(without(3), build=BadGradient)))


class InfiniteLoss(Trainer):
    """A trainer with a loss that is infinite, and a gradient that is not, at step 3."""

    def calculate_train_batch_loss(self, batch: Any) -> Any:
        output = super().calculate_train_batch_loss(batch)
        infinite = batch[1].isnan().any()
        loss = nn.functional.mse_loss(output["model_outputs"], batch[1].nan_to_num())
        return {**output, "loss": loss + torch.where(infinite, math.inf, 0.0)}


def test_a_loss_that_is_not_finite_is_skipped_though_the_gradient_is() -> None:
    skipped = skip(spoilt(3), kind=InfiniteLoss)
    assert skipped.storage.series("skipped_steps").values[-1] == 1
    assert_same_bits(state_of(skipped), state_of(train(without(3), kind=InfiniteLoss)))


class GentlyScaled(Trainer):
    """A trainer whose loss is scaled by so little that only a bad step overflows."""

    def training_run_start(self) -> None:
        self.precision.scaler = LossScaler(self.device, LossScaling(initial=8.0))


def test_skipping_works_with_scaled_half_precision() -> None:
    skipped = skip(spoilt(4), precision="fp16", kind=GentlyScaled)
    assert skipped.precision.scaler.get_scale() == 4.0
    assert skipped.storage.series("skipped_steps").values[-1] == 1
    reference = train(without(4), precision="fp16", kind=GentlyScaled)
    for name, tensor in reference.model.state_dict().items():
        torch.testing.assert_close(skipped.model.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)


class Reassigning(nn.Module):
    """A model that puts a new tensor in the place of its buffer, as many write it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("mean", torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        self.mean = 0.9 * self.get_buffer("mean") + 0.1 * inputs.mean(0)
        outputs: Tensor = self.layer(inputs - self.mean)
        return outputs


@pytest.mark.parametrize("bad", [1, 4])
def test_a_buffer_that_is_assigned_anew_is_gated_too(bad: int) -> None:
    skipped = skip(spoilt(bad), build=Reassigning)
    assert_same_bits(state_of(skipped), state_of(train(without(bad), build=Reassigning)))


def test_skipping_is_gated_for_each_of_several_optimizers() -> None:
    class Alternating(Trainer):
        def phases(self, epoch: int) -> Any:
            for name in ("one", "two", "one"):
                stream, loss = self._train_dataloader, self.calculate_train_batch_loss
                yield Phase(name, stream, loss, self.optimizer[name], steps=2)  # type: ignore[arg-type]

    def trained(data: Any, steps: list[str], **kwargs: Any) -> Any:
        model: Any = seeded(normalised)
        optimizers = {"one": momentum(model[0].parameters()), "two": adamw(model[2].parameters())}
        trainer = Alternating(model, nn.MSELoss(), optimizers, callbacks=(), seed=1, device="cpu", **kwargs)
        trainer.train(data, 1, **IN_ORDER)
        return trainer

    skipped = trained(spoilt(4), [], on_nonfinite="skip")
    # The fourth step is the second of the second phase, so its optimizer made one update, and the other four.
    counts = [state["step"].item() for state in skipped.optimizer["two"].state.values()]
    assert counts == [1.0, 1.0]
    assert skipped.storage.series("skipped_steps").values[-1] == 1
    assert all(torch.isfinite(tensor).all() for tensor in skipped.model.state_dict().values())


def test_the_norm_of_a_skipped_gradient_is_seen() -> None:
    trainer = skip(spoilt(3), GradientNormMonitor, log_every=1)
    norms = trainer.storage.series("gradient_norm").values
    assert [math.isnan(norm) for norm in norms] == [False, False, True, False, False, False]


def test_a_run_that_skips_goes_on_exactly_after_cuts(tmp_path: Path) -> None:
    def make(run_dir: Path, *callbacks: Any) -> Any:
        return make_trainer(run_dir, *callbacks, on_nonfinite="skip")

    def go(trainer: Any) -> None:
        trainer.train(spoilt(2, 5), 2, save_every=1, log_every=2, resume="auto", **IN_ORDER)

    whole = make(tmp_path / "whole")
    go(whole)
    cut = train_through([2, 3, 6, 8], partial(make, tmp_path / "cut"), go, saved=1)
    assert_same_run(cut, whole)
    assert metric_lines(tmp_path / "cut") == metric_lines(tmp_path / "whole")
    assert metric_lines(tmp_path / "cut")[-1]["skipped_steps"] == 4


def test_checkpoints_of_a_run_that_skips_are_finite(tmp_path: Path) -> None:
    skip(spoilt(3), run_dir=tmp_path, save_every=1, checkpoints=Policy(keep_last=None))
    store = CheckpointStore(tmp_path / "checkpoints", Policy())
    assert store.steps() == [1, 2, 3, 4, 5, 6]
    weights = [store.read(step)["tracked"]["model"] for step in store.steps()]
    assert_same_bits(weights[2], weights[1])
