"""DARTS of second order, against autograd and against differences."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from tests.nas.small import data, make, small
from treadle import nas
from treadle.callback import TrainerCallback

RATE, MOMENTUM, DECAY = 0.1, 0.9, 0.01


class Toy(nn.Module):
    """Two parameters and a choice between two functions of them."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Scaled(0.7, torch.sin)
        self.other = Scaled(-0.4, torch.tanh)
        self.layer = nas.LayerChoice([self.one, self.other], label="layer")

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layer(inputs)
        return output


class Scaled(nn.Module):
    """A function of its input times its one parameter."""

    def __init__(self, weight: float, function: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight, dtype=torch.float64))
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.function(self.weight * inputs)
        return output


def samples(seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(16, 1, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.cos(inputs))


def toy_trainer(unrolled: bool, callback: Any, optimizer: Any) -> Any:
    trainer = nas.DartsTrainer(
        Toy(),
        F.mse_loss,
        None,
        optimizer,
        2,
        samples(0),
        validation_dataset=samples(1),
        unrolled=unrolled,
        batch_size=16,
        seed=0,
        device="cpu",
        grad_clip=None,
        arc_learning_rate=0.3,
        callbacks=(callback,),
    )
    trainer.supernet.weights.double()
    return trainer


class Gradients(TrainerCallback):
    """Takes the gradient of the architecture before it is applied, with all it depends on."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self._before: dict[str, Any] = {}

    def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
        weights = [weight.detach().clone() for weight in trainer.weight_parameters]
        state = trainer.optimizers()["weights"].state
        momenta = [state[weight].get("momentum_buffer") for weight in trainer.weight_parameters if weight in state]
        self._before = {
            "alpha": trainer.model.weights.alpha.detach().clone(),
            "weights": weights,
            "momenta": [None if one is None else one.clone() for one in momenta] or [None] * len(weights),
        }
        step = trainer.apply_gradients

        def apply_gradients(phase: Any) -> None:
            if phase.name == "architecture":
                self.taken.append(self._before | {"gradient": trainer.model.weights.alpha.grad.clone()})
            trainer.apply_gradients = step
            step(phase)

        trainer.apply_gradients = apply_gradients


def loss_of(alpha: Tensor, weights: list[Tensor], batch: tuple[Tensor, ...]) -> Tensor:
    shares = alpha.softmax(-1)[0]
    inputs, targets = batch
    return F.mse_loss(shares[0] * torch.sin(weights[0] * inputs) + shares[1] * torch.tanh(weights[1] * inputs), targets)


def through_the_step(
    alpha: Tensor, weights: list[Tensor], momenta: list[Any], *, nesterov: bool = False, dampening: float = 0.0
) -> Tensor:
    """Return the validation loss after the step that SGD makes on the training loss, as a function of alpha."""
    gradients = torch.autograd.grad(loss_of(alpha, weights, samples(0).tensors), weights, create_graph=True)
    moved = []
    for weight, gradient, momentum in zip(weights, gradients, momenta, strict=True):
        direction = gradient + DECAY * weight
        buffer = direction if momentum is None else MOMENTUM * momentum + (1 - dampening) * direction
        moved.append(weight - RATE * (direction + MOMENTUM * buffer if nesterov else buffer))
    return loss_of(alpha, moved, samples(1).tensors)


@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"dampening": 0.3}], ids=["plain", "nesterov", "dampened"])
def test_darts_4_the_gradient_of_second_order_is_that_of_autograd_and_of_differences(options: dict[str, Any]) -> None:
    taken = Gradients()

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, **options)

    toy_trainer(True, taken, optimizer).fit()
    assert len(taken.taken) == 2
    for one in taken.taken:
        alpha = one["alpha"].clone().requires_grad_()
        weights = [weight.clone().requires_grad_() for weight in one["weights"]]
        (exact,) = torch.autograd.grad(through_the_step(alpha, weights, one["momenta"], **options), [alpha])
        torch.testing.assert_close(one["gradient"], exact, rtol=1e-3, atol=1e-6)
        differences = torch.zeros_like(exact)
        for place in range(2):
            step = torch.zeros_like(alpha)
            step[0, place] = 1e-5
            sides = [
                through_the_step(one["alpha"] + sign * step, weights, one["momenta"], **options).detach()
                for sign in (1, -1)
            ]
            differences[0, place] = (sides[0] - sides[1]) / 2e-5
        torch.testing.assert_close(one["gradient"], differences, rtol=1e-3, atol=1e-6)


def test_darts_4_first_and_second_order_are_not_the_same() -> None:
    found = {}
    for unrolled in (False, True):
        taken = Gradients()
        toy_trainer(unrolled, taken, lambda parameters: torch.optim.SGD(parameters, lr=RATE)).fit()
        found[unrolled] = taken.taken[0]["gradient"]
    assert float((found[False] - found[True]).abs().max()) > 1e-3


def test_darts_4_of_another_optimizer_the_step_is_one_down_the_gradient_with_weight_decay() -> None:
    taken = Gradients()
    toy_trainer(True, taken, lambda parameters: torch.optim.Adam(parameters, lr=RATE, weight_decay=DECAY)).fit()
    one = taken.taken[0]
    alpha, weights = (
        one["alpha"].clone().requires_grad_(),
        [weight.clone().requires_grad_() for weight in one["weights"]],
    )
    (exact,) = torch.autograd.grad(through_the_step(alpha, weights, [None, None]), [alpha])
    torch.testing.assert_close(one["gradient"], exact, rtol=1e-3, atol=1e-6)


def test_darts_4_weights_momentum_and_buffers_are_put_back_to_the_last_bit() -> None:
    class Watch(TrainerCallback):
        def __init__(self) -> None:
            self.before: dict[str, Tensor] = {}
            self.compared = 0

        def state(self, trainer: Any) -> dict[str, Tensor]:
            found = {name: value.detach().clone() for name, value in trainer.model.space.state_dict().items()}
            for place, state in enumerate(trainer.optimizers()["weights"].state.values()):
                if state.get("momentum_buffer") is not None:
                    found[f"momentum {place}"] = state["momentum_buffer"].clone()
            return found

        def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
            self.before = self.state(trainer)

        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.this_run.updater.phase.name == "architecture":
                self.compared += 1
                for name, value in self.state(trainer).items():
                    assert torch.equal(value, self.before[name]), name

    watch = Watch()
    trainer = make(nas.DartsTrainer, unrolled=True, callbacks=(watch,))
    trainer.fit()
    assert watch.compared == 6


def test_the_weights_are_trained_on_the_batch_that_was_looked_ahead_to() -> None:
    class Seen(TrainerCallback):
        def __init__(self) -> None:
            self.windows: list[Any] = []

    seen = Seen()
    trainer = make(nas.DartsTrainer, unrolled=True, callbacks=(seen,), num_epochs=1)
    update = trainer.core.update

    def noted(phase: Any, window: Any) -> None:
        seen.windows.append(window)
        update(phase, window)

    trainer.core.update = noted
    trainer.fit()
    for architecture, weights in zip(seen.windows[::2], seen.windows[1::2], strict=True):
        assert torch.equal(architecture[0][0][0], weights[0][0])


@pytest.mark.parametrize(
    "options", [{"gradient_accumulation_steps": 2}, {"dataset": data(24), "validation_dataset": data(40, 1)}]
)
def test_windows_and_data_of_unequal_length_work_in_second_order_too(options: dict[str, Any]) -> None:
    trainer = make(nas.DartsTrainer, unrolled=True, **options)
    result = trainer.fit()
    assert result.steps == (8 if "dataset" not in options else 20)
    assert trainer.export()["skip"] in ([0], [1])


def test_only_the_validation_loss_is_recorded_and_heard_of() -> None:
    class Count(TrainerCallback):
        def __init__(self) -> None:
            self.steps = 0

        def on_train_step_end(self, trainer: Any, **kwargs: Any) -> None:
            self.steps += 1

    count = Count()
    trainer = make(nas.DartsTrainer, small(), unrolled=True, callbacks=(count,), num_epochs=1)
    trainer.fit()
    assert count.steps == 6
    assert len(trainer.storage.series("architecture_loss").values) == 3
    assert len(trainer.storage.series("weights_loss").values) == 3
