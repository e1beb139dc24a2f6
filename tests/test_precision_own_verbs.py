"""Verbs and loops of one's own in fp16: gradients and scale fit together, or it is said that they do not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.guards.no_sync import no_sync
from tests.interrupting import assert_same_bits, momentum, samples
from tests.spoiling import IN_ORDER, seeded
from treadle import Phase, Trainer
from treadle.errors import LossError
from treadle.precision import LossScaling

NOT_SCALED = (
    "precision='fp16' scales the loss, and the gradients of this update are of a loss that was not scaled: brought to "
    "their true size they would vanish. Where your own backward_step, update or loop calls loss.backward(), call "
    "super().backward_step(loss), self.backward_step(loss) or self.precision.scale(loss).backward()"
)
ADDED = (
    "backward_step adds the gradient of a loss that precision='fp16' has not scaled, which would vanish when gradients "
    "are brought to their true size; call super().backward_step(loss) or self.precision.scale(loss).backward()"
)
STILL_SCALED = (
    "SGD steps with the gradients of a loss that precision='fp16' has scaled; call super().optimizer_step() in an "
    "optimizer_step of your own and self.optimizer_step() elsewhere, which bring them to their true size and leave out "
    "those that overflowed"
)


def train(kind: type[Trainer], precision: str = "fp16", **settings: Any) -> Trainer:
    model = seeded(lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)))
    options: dict[str, Any] = {"loss_scaling": LossScaling(initial=64.0)} if precision == "fp16" else {}
    trainer = kind(
        model, nn.MSELoss(), momentum(model.parameters()), callbacks=(), device="cpu", precision=precision, **options
    )
    trainer.train(samples(), 1, **IN_ORDER, **settings)
    return trainer


class PlainBackward(Trainer):
    def backward_step(self, loss: Tensor) -> None:
        loss.backward()


class OwnUpdate(Trainer):
    def update(self, phase: Phase, window: list[Any]) -> None:
        self.this_run.updater.phase = phase
        for batch in window:
            self.calculate_train_batch_loss(batch)["loss"].backward()
        self.apply_gradients(phase)


class OwnLoop(Trainer):
    def _run_train_epoch(self, train_dl: Any) -> None:
        for batch in train_dl:
            self.calculate_train_batch_loss(batch)["loss"].backward()
            self.optimizer_step()
            self.optimizer_zero_grad()


@pytest.mark.parametrize("settings", [{}, {"clip_norm": 0.1}, {"gradient_accumulation_steps": 2}], ids=str)
def test_a_backward_step_of_ones_own_that_does_not_scale_is_refused_in_fp16(settings: dict[str, Any]) -> None:
    with pytest.raises(LossError) as caught:
        train(PlainBackward, **settings)
    assert str(caught.value) == ADDED
    train(PlainBackward, "bf16", **settings)


@pytest.mark.parametrize("kind", [OwnUpdate, OwnLoop])
def test_gradients_that_were_not_scaled_are_refused_wherever_they_were_made(kind: type[Trainer]) -> None:
    with pytest.raises(LossError) as caught:
        train(kind)
    assert str(caught.value) == NOT_SCALED
    assert train(kind, "bf16").progress.step == 6


class Beside(Trainer):
    """Adds the gradient of a second loss, which is scaled or not, before or after the first."""

    scales, before = False, True

    def backward_step(self, loss: Tensor) -> None:
        second = self.model[0].weight.square().sum()
        for one in (second, loss) if self.before else (loss, second):
            if one is loss:
                super().backward_step(loss)
            else:
                (self.precision.scale(second) if self.scales else second).backward()


@pytest.mark.parametrize("before", [True, False])
def test_a_second_loss_that_is_not_scaled_is_refused_in_fp16(before: bool) -> None:
    with pytest.raises(LossError) as caught:
        train(type("Unscaled", (Beside,), {"before": before}))
    assert str(caught.value) == ADDED


def test_a_second_loss_that_is_scaled_counts_as_the_first_does() -> None:
    scaled = type("Scaled", (Beside,), {"scales": True})
    torch.testing.assert_close(train(scaled).model[0].weight, train(scaled, "fp32").model[0].weight, rtol=0, atol=2**-9)


class ScaledBackward(Trainer):
    def backward_step(self, loss: Tensor) -> None:
        self.precision.scale(loss).backward()


class AroundBackward(Trainer):
    def backward_step(self, loss: Tensor) -> None:
        super().backward_step(loss)


class Skipping(Trainer):
    """Learns from every other micro-batch only, without reading anything."""

    turn = 0

    def backward_step(self, loss: Tensor) -> None:
        self.turn += 1
        if self.turn % 2:
            super().backward_step(loss)

    def update(self, phase: Phase, window: list[Any]) -> None:
        with no_sync("cpu"):
            super().update(phase, window)


@pytest.mark.parametrize("kind", [ScaledBackward, AroundBackward])
def test_a_backward_step_of_ones_own_that_scales_learns_what_the_trainers_does(kind: type[Trainer]) -> None:
    assert_same_bits(train(kind).model.state_dict(), train(Trainer).model.state_dict())


def test_an_update_without_any_gradient_is_no_reason_to_stop_and_nothing_is_read() -> None:
    trainer = train(Skipping)
    assert trainer.turn == trainer.progress.step == 6


class OwnStep(Trainer):
    def optimizer_step(self) -> None:
        self.optimizer.step()


class ScaledLoop(Trainer):
    """A loop that scales the loss, and then steps as if it had not."""

    def _run_train_epoch(self, train_dl: Any) -> None:
        for batch in train_dl:
            self.backward_step(self.calculate_train_batch_loss(batch)["loss"])
            self.optimizer.step()
            self.optimizer_zero_grad()


@pytest.mark.parametrize("kind", [OwnStep, ScaledLoop])
def test_a_step_with_gradients_that_are_still_scaled_is_refused_in_fp16(kind: type[Trainer]) -> None:
    with pytest.raises(LossError) as caught:
        train(kind)
    assert str(caught.value) == STILL_SCALED
    assert train(kind, "bf16").progress.step == 6


def test_a_step_of_ones_own_after_clipping_has_gradients_of_their_true_size() -> None:
    assert_same_bits(train(OwnStep, clip_norm=0.1).model.state_dict(), train(Trainer, clip_norm=0.1).model.state_dict())


class FineLoop(Trainer):
    """A loop that leaves scaling to the trainer's verbs."""

    def _run_train_epoch(self, train_dl: Any) -> None:
        for batch in train_dl:
            with self.precision.autocast():
                output = self.calculate_train_batch_loss(batch)
            self.backward_step(output["loss"])
            self.optimizer_step()
            self.optimizer_zero_grad()


def test_a_loop_that_uses_the_verbs_for_both_learns_what_the_trainers_loop_does() -> None:
    assert_same_bits(train(FineLoop).model.state_dict(), train(Trainer).model.state_dict())


class HandWritten(Trainer):
    """A loop that neither scales nor unscales."""

    def _run_train_epoch(self, train_dl: Any) -> None:
        for batch in train_dl:
            self.calculate_train_batch_loss(batch)["loss"].backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def test_a_loop_that_neither_scales_nor_unscales_is_left_alone() -> None:
    assert torch.equal(*(train(HandWritten, kind).model[0].weight for kind in ("fp16", "fp32")))
