"""Models that fp16 is too small for: large losses, gradients that overflow at any scale, activations that overflow."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.interrupting import CutAt, CutError, assert_same_bits, make_trainer, metric_lines, state_of, train_through
from treadle import Trainer, TrainerCallback
from treadle.errors import NonFiniteError
from treadle.precision import LossScaling

ITEMS = 2000


def interactions() -> TensorDataset:
    """The numbers of interactions of 32 users with some of 2000 items."""
    generator = torch.Generator().manual_seed(0)
    counts = 100 * torch.rand(32, ITEMS, generator=generator)
    return TensorDataset(counts / 100, counts)


def autoencoder() -> nn.Module:
    """A model that gives every item a score, as CDAE does."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(ITEMS, 8), nn.Tanh(), nn.Linear(8, ITEMS))


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error, summed over items: some millions, for a user."""
    difference = outputs - targets
    return (difference * difference).sum(dim=1).mean()


adam = partial(torch.optim.Adam, lr=0.1)


def train_summed(precision: str, **kwargs: Any) -> Any:
    trainer = make_trainer(None, build=autoencoder, optimizer=adam, loss_func=summed, precision=precision, **kwargs)
    result = trainer.train(interactions(), 3, per_device_batch_size=8, train_dataloader_kwargs={"shuffle": False})
    return trainer, result.history


def test_a_model_whose_loss_is_a_large_sum_over_items_trains_in_fp16_without_losing_an_update() -> None:
    trainer, history = train_summed("fp16")
    _, expected = train_summed("fp32")
    assert history["train_loss_epoch"][0] > 1e6
    assert history["train_loss_epoch"] == pytest.approx(expected["train_loss_epoch"], rel=1e-2)
    assert trainer.storage.series("skipped_steps").values[-1] == 0
    assert trainer.precision.kind == "fp16"
    assert "fp16_until_step" not in history


def test_such_a_model_overflows_at_the_scale_that_torch_begins_with() -> None:
    trainer, _ = train_summed("fp16", loss_scaling=LossScaling(initial=65536.0))
    assert trainer.storage.series("skipped_steps").values[-1] > 3


# Gradients that overflow whatever the scale is --------------------------------------------------------------


class Steep(nn.Module):
    """A model whose gradient is infinite in fp16 alone: a slope of a million meets numbers that end at 65504."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1, bias=False)
        nn.init.ones_(self.layer.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = _Slope.apply(self.layer(inputs))  # type: ignore[no-untyped-call]
        return outputs


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor) -> Tensor:
        ctx.half = outputs.dtype == torch.float16
        return outputs.float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0].half() + math.inf if ctx.half else gradients[0]


def points(count: int = 160) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 2, generator=generator)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True) * 2)


ONE_BY_ONE: dict[str, Any] = {"per_device_batch_size": 2, "train_dataloader_kwargs": {"shuffle": False}}


class Watch(TrainerCallback):
    """Notes the weights after every update."""

    def __init__(self) -> None:
        self.weights: list[list[float]] = []

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.weights.append(trainer.model.layer.weight.detach().flatten().tolist())


def steep(run_dir: Path | None = None, *callbacks: Any, **kwargs: Any) -> Any:
    sgd = partial(torch.optim.SGD, lr=0.05)
    return make_trainer(run_dir, *callbacks, build=Steep, optimizer=sgd, precision="fp16", **kwargs)


def test_gradients_that_overflow_for_more_than_30_steps_change_no_weight_and_then_the_run_goes_on_in_another_format(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = Watch()
    trainer = steep(None, watch)
    history = trainer.train(points(), 1, log_every=10, **ONE_BY_ONE).history
    # From 65536 down to 2**-24 the scale is halved 40 times; with 8 more overflows there, the next log is at step 50.
    weights = watch.weights
    assert weights[:50] == [[1.0, 1.0]] * 50
    assert weights[50] != [1.0, 1.0]
    assert all(map(math.isfinite, weights[-1]))
    assert trainer.model.layer.weight.detach().flatten().tolist() == pytest.approx([2.0, 2.0], abs=0.5)
    assert trainer.storage.series("skipped_steps").values[-1] == 50
    assert trainer.storage.series("loss_scale").values[-1] == 2.0**-24
    assert history["fp16_until_step"] == [50]
    assert (trainer.precision.initial, trainer.precision.kind, trainer.precision.scaler) == ("fp16", "fp32", None)
    said = [line for line in capsys.readouterr().out.splitlines() if "fp16" in line]
    assert said == [
        "precision='fp16' will not do: the gradients of 8 updates in a row overflowed though the loss is scaled by "
        "5.96e-08, the smallest scale allowed. No weight was changed by it. The run continues in fp32 from step 51; "
        "set precision='fp32' to begin so"
    ]


def test_a_run_that_fell_back_goes_on_exactly_after_cuts_before_and_after_it(tmp_path: Path) -> None:
    def go(trainer: Any) -> None:
        trainer.train(points(), 1, log_every=10, save_every=7, resume="auto", **ONE_BY_ONE)

    whole = steep(tmp_path / "whole")
    go(whole)
    cut = train_through([15, 46, 51, 57], partial(steep, tmp_path / "cut"), go, saved=7)
    assert_same_bits(state_of(cut), state_of(whole))
    assert_same_bits(cut.precision.state_dict(), whole.precision.state_dict())
    assert cut.precision.fallback == {
        "step": 50,
        "from": "fp16",
        "to": "fp32",
        "reason": "the gradients of 8 updates in a row overflowed though the loss is scaled by 5.96e-08, the smallest "
        "scale allowed",
    }
    assert metric_lines(tmp_path / "cut") == metric_lines(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_the_format_to_fall_back_to_can_be_chosen(kind: str) -> None:
    trainer = steep(loss_scaling=LossScaling(initial=1.0, minimum=1.0, patience=2, fallback=kind))
    trainer.train(points(), 1, log_every=5, **ONE_BY_ONE)
    assert trainer.precision.kind == kind
    assert trainer.storage.series("skipped_steps").values[-1] == 5


def test_a_new_run_begins_in_fp16_again() -> None:
    trainer = steep(loss_scaling=LossScaling(initial=1.0, minimum=1.0, patience=2))
    trainer.train(points(), 1, log_every=5, **ONE_BY_ONE)
    trainer.train(points(), max_steps=1, **ONE_BY_ONE)
    assert (trainer.precision.kind, trainer.precision.fallback) == ("fp16", None)


def test_gradients_that_overflow_at_every_scale_end_the_run_if_it_may_not_fall_back() -> None:
    trainer = steep(loss_scaling=LossScaling(initial=1.0, minimum=1.0, patience=2, fallback="raise"))
    with pytest.raises(NonFiniteError) as caught:
        trainer.train(points(), 1, log_every=5, **ONE_BY_ONE)
    assert str(caught.value) == (
        "the gradients of 2 updates in a row overflowed though the loss is scaled by 1, the smallest scale allowed; "
        "use precision='bf16' or 'fp32', or LossScaling(fallback='auto')"
    )
    assert trainer.model.layer.weight.flatten().tolist() == [1.0, 1.0]


def test_overflows_that_end_are_no_reason_to_fall_back() -> None:
    class Calms(Steep):
        calls = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(inputs) if self.calls <= 6 else self.layer(inputs)

    scaling = LossScaling(initial=1.0, minimum=1.0, patience=5)
    sgd = partial(torch.optim.SGD, lr=0.05)
    trainer = make_trainer(None, build=Calms, optimizer=sgd, precision="fp16", loss_scaling=scaling)
    trainer.train(points(), 1, log_every=10, **ONE_BY_ONE)
    assert trainer.precision.kind == "fp16"
    assert trainer.storage.series("skipped_steps").values[-1] == 6


def test_a_run_that_skips_bad_updates_falls_back_from_fp16_too() -> None:
    trainer = steep(on_nonfinite="skip", loss_scaling=LossScaling(initial=1.0, minimum=1.0, patience=2))
    trainer.train(points(), 1, log_every=5, **ONE_BY_ONE)
    assert trainer.precision.kind == "fp32"
    assert trainer.storage.series("skipped_steps").values[-1] == 5


# Activations that overflow ------------------------------------------------------------------------------------


class Large(nn.Module):
    """A model whose activations leave the range of fp16 for large inputs, and whose buffers would keep that."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1, bias=False)
        self.norm = nn.BatchNorm1d(1)
        nn.init.ones_(self.layer.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.norm(self.layer(inputs).float())
        return outputs


def growing(bad_step: int) -> TensorDataset:
    inputs, targets = points(40).tensors
    inputs = inputs.clone()
    inputs[4 * bad_step - 2] = 1e5
    return TensorDataset(inputs, targets)


FOURS: dict[str, Any] = {"per_device_batch_size": 4, "train_dataloader_kwargs": {"shuffle": False}}


def large(run_dir: Path | None = None, *callbacks: Any, **kwargs: Any) -> Any:
    sgd = partial(torch.optim.SGD, lr=0.01)
    options = {"precision": "fp16", "loss_scaling": LossScaling(initial=64.0), **kwargs}
    return make_trainer(run_dir, *callbacks, build=Large, optimizer=sgd, **options)


def test_activations_that_overflow_leave_weights_and_buffers_finite_and_the_run_goes_on_in_another_format(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainer = large()
    history = trainer.train(growing(3), 1, log_every=5, **FOURS).history
    assert all(tensor.isfinite().all() for tensor in trainer.model.state_dict().values())
    assert history["fp16_until_step"] == [5]
    assert math.isfinite(history["train_loss_epoch"][0])
    assert trainer.precision.kind == "fp32"
    said = capsys.readouterr().out
    assert "precision='fp16' will not do: loss is nan at step 3. No weight was changed by it. The run continues" in said


def test_a_loss_that_is_not_finite_in_the_other_format_either_ends_the_run() -> None:
    inputs, targets = growing(3).tensors
    targets = targets.clone()
    targets[30] = math.nan
    with pytest.raises(NonFiniteError, match=r"^loss is nan at step 8 \("):
        large().train(TensorDataset(inputs, targets), 1, log_every=5, **FOURS)


def test_without_leave_to_fall_back_a_loss_that_is_not_finite_ends_the_run() -> None:
    trainer = large(loss_scaling=LossScaling(initial=64.0, fallback="raise"))
    with pytest.raises(NonFiniteError, match=r"^loss is nan at step 3 \("):
        trainer.train(growing(3), 1, log_every=5, **FOURS)
    assert all(tensor.isfinite().all() for tensor in trainer.model.state_dict().values())


def test_a_run_that_skips_bad_updates_stays_in_fp16_though_a_loss_is_not_finite() -> None:
    trainer = large(on_nonfinite="skip")
    trainer.train(growing(3), 1, log_every=5, **FOURS)
    assert trainer.precision.kind == "fp16"
    assert trainer.storage.series("skipped_steps").values[-1] == 1


def test_a_bad_loss_that_was_seen_before_a_cut_is_acted_on_after_it(tmp_path: Path) -> None:
    def go(trainer: Any) -> None:
        trainer.train(growing(3), 1, log_every=5, save_every=1, resume="auto", **FOURS)

    whole = large(tmp_path / "whole")
    go(whole)
    with pytest.raises(CutError):
        go(large(tmp_path / "cut", CutAt(4)))
    cut = large(tmp_path / "cut")
    go(cut)
    assert cut.precision.fallback is not None
    assert_same_bits(state_of(cut), state_of(whole))
    assert_same_bits(cut.precision.state_dict(), whole.precision.state_dict())
    assert metric_lines(tmp_path / "cut") == metric_lines(tmp_path / "whole")


def test_a_run_that_may_roll_back_falls_back_instead_since_no_weight_was_spoilt(tmp_path: Path) -> None:
    trainer = large(tmp_path, on_nonfinite="rollback")
    trainer.train(growing(3), 1, log_every=5, save_every=1, **FOURS)
    assert trainer.precision.kind == "fp32"
    assert not trainer.this_run.updater.skipped.steps


def test_the_history_says_in_which_step_a_run_left_fp16_and_the_folder_what_was_said(tmp_path: Path) -> None:
    trainer: Trainer = large(tmp_path)
    trainer.train(growing(3), 1, log_every=5, **FOURS)
    assert [row["fp16_until_step"] for row in metric_lines(tmp_path) if "fp16_until_step" in row] == [5]
    assert "The run continues in fp32 from step 6" in (tmp_path / "log.txt").read_text()
