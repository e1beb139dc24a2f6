"""Verbs and loops of your own in fp16: gradients and scale fit together, or it is said that they do not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.guards.no_sync import no_sync
from tests.interrupting import assert_same_bits, momentum, samples
from tests.spoiling import IN_ORDER, seeded
from treadle import Phase, Trainer, TrainerCallback
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
MIXED = (
    "has a part from a loss that precision='fp16' has not scaled, beside that of the scaled loss: it would vanish when "
    "gradients are brought to their true size. Add that loss to the one that the loss method returns; or, where you "
    "call its backward(), call self.precision.scale(loss).backward()"
)
STILL_SCALED = (
    "SGD steps with the gradients of a loss that precision='fp16' has scaled; call super().optimizer_step() in an "
    "optimizer_step of your own and self.optimizer_step() elsewhere, which bring them to their true size and leave out "
    "those that overflowed"
)


def train(kind: type[Trainer], precision: str = "fp16", *, callbacks: Any = (), **settings: Any) -> Trainer:
    model = seeded(lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)))
    options: dict[str, Any] = {"loss_scaling": LossScaling(initial=64.0)} if precision == "fp16" else {}
    trainer = kind(
        model,
        nn.MSELoss(),
        momentum(model.parameters()),
        callbacks=callbacks,
        device="cpu",
        precision=precision,
        **options,
    )
    trainer.train(samples(), 1, **{**IN_ORDER, **settings})
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


# Passes that were not scaled, wherever they begin ---------------------------------------------------------------


class InTheLossVerb(Trainer):
    """Learns in the loss verb, from the loss itself or from a second one."""

    keeps = True

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        (output["loss"] * 0.5).backward(retain_graph=True)
        return output if self.keeps else {**output, "loss": output["loss"].detach().requires_grad_()}


class InAnEvent(TrainerCallback):
    def on_train_step_end(self, trainer: Trainer, **kwargs: Any) -> None:
        trainer.model[0].weight.square().sum().backward()


class InOwnGradients(Trainer):
    """Adds a second loss where it calculates the gradients of the first."""

    def calculate_gradients(self, phase: Phase, window: list[Any]) -> None:
        super().calculate_gradients(phase, window)
        self.model[0].weight.square().sum().backward()


class InOwnLoop(Trainer):
    def _run_train_epoch(self, train_dl: Any) -> None:
        for batch in train_dl:
            self.model[0].weight.square().sum().backward()
            self.backward_step(self.calculate_train_batch_loss(batch)["loss"])
            self.optimizer_step()
            self.optimizer_zero_grad()


@pytest.mark.parametrize("settings", [{}, {"clip_norm": 0.1}, {"gradient_accumulation_steps": 2}], ids=str)
@pytest.mark.parametrize("keeps", [True, False])
def test_a_loss_verb_that_learns_from_a_loss_that_is_not_scaled_is_refused_in_fp16(
    settings: dict[str, Any], keeps: bool
) -> None:
    kind = type("Learning", (InTheLossVerb,), {"keeps": keeps})
    with pytest.raises(LossError) as caught:
        train(kind, **settings)
    assert str(caught.value) == f"the gradient of 2.weight {MIXED}"
    train(kind, "bf16", **settings)


@pytest.mark.parametrize("kind", [InOwnGradients, InOwnLoop])
def test_a_second_loss_that_is_not_scaled_is_refused_in_gradients_and_loops_of_ones_own(kind: type[Trainer]) -> None:
    with pytest.raises(LossError) as caught:
        train(kind)
    assert str(caught.value) == f"the gradient of 0.weight {MIXED}"


def test_a_callback_that_learns_from_a_loss_that_is_not_scaled_is_refused_in_fp16() -> None:
    with pytest.raises(LossError) as caught:
        train(Trainer, callbacks=(InAnEvent(),))
    assert str(caught.value) == f"the gradient of 0.weight {MIXED}"


class Beginning(Trainer):
    """Adds a second loss from the third update of an epoch on: before, within or after the verb that scales."""

    place, every = "before", 1

    def second(self, place: str) -> None:
        step = self.progress.step
        if place == self.place and step >= 2 and step % self.every == 0:
            self.model[0].weight.square().sum().backward()

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        self.second("before")
        return output

    def backward_step(self, loss: Tensor) -> None:
        super().backward_step(loss)
        self.second("after")


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(("place", "message"), [("before", f"the gradient of 0.weight {MIXED}"), ("after", ADDED)])
def test_a_second_loss_that_begins_in_the_middle_of_an_epoch_is_refused_too(
    place: str, message: str, every: int
) -> None:
    with pytest.raises(LossError) as caught:
        train(type("Later", (Beginning,), {"place": place, "every": every}), per_device_batch_size=2)
    assert str(caught.value) == message


class WithoutHarm(Trainer):
    """Makes passes that leave nothing behind in the gradients of the update."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.critic = seeded(lambda: nn.Linear(1, 1))
        self.optimizer_of_critic = torch.optim.SGD(self.critic.parameters(), lr=0.1)

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        loss = super().calculate_train_batch_loss(batch)["loss"]
        torch.autograd.grad(loss, [self.model[0].weight], retain_graph=True)
        loss.backward()
        self.optimizer.zero_grad()
        self.critic(loss.detach().float().reshape(1, 1)).sum().backward()
        self.optimizer_of_critic.step()
        return super().calculate_train_batch_loss(batch)


class Looks(TrainerCallback):
    """Notes at each update whether gradients are looked at."""

    def __init__(self) -> None:
        self.found: list[bool] = []

    def on_train_step_start(self, trainer: Trainer, **kwargs: Any) -> None:
        self.found.append(bool(trainer.model[0].weight._post_accumulate_grad_hooks))


def test_passes_that_leave_no_gradient_are_no_reason_to_stop_nor_to_look_at_every_update() -> None:
    looks = Looks()
    trainer = train(WithoutHarm, callbacks=(looks,), per_device_batch_size=2)
    assert_same_bits(trainer.model.state_dict(), train(Trainer, per_device_batch_size=2).model.state_dict())
    assert looks.found == [True, False, True] + [False] * 9


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        return checkpoint(self.second, hidden.tanh(), use_reentrant=True)


def test_what_is_computed_again_for_a_scaled_loss_is_a_part_of_its_pass() -> None:
    model = seeded(Checkpointed)
    trainer = ScaledBackward(
        model, nn.MSELoss(), momentum(model.parameters()), callbacks=(), device="cpu", precision="fp16"
    )
    assert trainer.train(samples(), 1, **IN_ORDER).steps == 6


# Forward passes of updates of your own ---------------------------------------------------------------------------


class Noting(nn.Linear):
    """Notes the format of what it returns."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[torch.dtype] = []

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        self.seen.append(outputs.dtype)
        return outputs


class OwnScaledUpdate(Trainer):
    def update(self, phase: Phase, window: list[Any]) -> None:
        self._phase = phase
        for batch in window:
            self.backward_step(self.calculate_train_batch_loss(batch)["loss"])
            self._window_samples = len(batch[0])
        self.apply_gradients(phase)


class OwnGradients(Trainer):
    def calculate_gradients(self, phase: Phase, window: list[Any]) -> None:
        self._phase = phase
        for batch in window:
            self.backward_step(self.calculate_train_batch_loss(batch)["loss"])
            self._window_samples = len(batch[0])


class AroundGradients(Trainer):
    """Calls the trainer's verb, within which one pass is in single precision on purpose, and listens."""

    def calculate_gradients(self, phase: Phase, window: list[Any]) -> None:
        super().calculate_gradients(phase, window)

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        with torch.autocast("cpu", enabled=False):
            self.model(batch[0])
        return super().calculate_train_batch_loss(batch)


def formats(kind: type[Trainer], precision: str) -> list[torch.dtype]:
    model = seeded(lambda: Noting(2, 1))
    trainer = kind(
        model, nn.MSELoss(), momentum(model.parameters()), callbacks=(), device="cpu", precision=precision, seed=1
    )
    trainer.train(samples(), 2, **IN_ORDER)
    assert not model._forward_pre_hooks
    return model.seen


SAID = (
    "precision='fp16' is not applied to forward passes in an update or calculate_gradients of your own: run them "
    "within self.precision.autocast(), and use self.backward_step(loss) and self.optimizer_step()\n"
)


@pytest.mark.parametrize("kind", [OwnScaledUpdate, OwnGradients])
def test_an_update_of_ones_own_runs_in_bf16_and_in_fp16_it_is_said_once_that_it_does_not(
    capsys: pytest.CaptureFixture[str], kind: type[Trainer]
) -> None:
    assert formats(kind, "bf16") == [torch.bfloat16] * 12
    assert formats(kind, "fp32") == [torch.float32] * 12
    assert capsys.readouterr().out == ""
    assert formats(kind, "fp16") == [torch.float32] * 12
    assert capsys.readouterr().out == SAID


def test_an_update_of_ones_own_in_bf16_learns_what_the_trainers_does() -> None:
    own, trainers = (train(kind, "bf16").model.state_dict() for kind in (OwnScaledUpdate, Trainer))
    assert_same_bits(own, trainers)


@pytest.mark.parametrize(("precision", "half"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_what_runs_within_the_trainers_verbs_keeps_the_format_that_it_has_there(
    capsys: pytest.CaptureFixture[str], precision: str, half: torch.dtype
) -> None:
    assert formats(AroundGradients, precision) == [torch.float32, half] * 12
    assert capsys.readouterr().out == ""


def test_a_method_that_only_an_update_of_the_parent_calls_is_no_slip_of_the_pen() -> None:
    class Parent(Trainer):
        def update(self, phase: Phase, window: list[Any]) -> None:
            self.calculate_gradient(phase, window)

        def calculate_gradient(self, phase: Phase, window: list[Any]) -> None:
            super().update(phase, window)

    class Child(Parent):
        pass

    assert train(Child).progress.step == 6
