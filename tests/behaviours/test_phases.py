"""Several losses or optimizers in one run: each is compared with a loop written by hand, to the last bit."""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adam
from torch.utils.data import TensorDataset

from tests.interrupting import Updates, updates_of
from treadle.callbacks import SaveTrainingStateCallback
from treadle.errors import ConfigError
from treadle.phase import Phase, alternate
from treadle.trainer import Trainer

Batch = tuple[Tensor, Tensor]


class TwoPlayers(nn.Module):
    """Two parts whose losses reach each other's weights, as those of a GAN do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left = nn.Linear(2, 2)
        self.right = nn.Linear(2, 1)

    def left_loss(self, batch: Batch) -> Tensor:
        return mse_loss(self.right(torch.tanh(self.left(batch[0]))), batch[1])

    def right_loss(self, batch: Batch) -> Tensor:
        return self.right(self.left(batch[0])).square().mean() + mse_loss(self.right(batch[0]), batch[1])


def optimizers_of(model: TwoPlayers) -> dict[str, torch.optim.Optimizer]:
    return {
        "left": SGD(model.left.parameters(), lr=0.05, momentum=0.9),
        "right": Adam(model.right.parameters(), lr=0.01),
    }


class PhasesTrainer(Trainer):
    """A trainer of two players; `plan` says which phases an epoch has."""

    plan: Callable[[Any, int], Iterable[Phase]]

    def left_loss(self, batch: Batch) -> dict[str, Any]:
        return {"loss": self.model.left_loss(batch), "model_outputs": None, "batch_size": len(batch[0])}

    def right_loss(self, batch: Batch) -> dict[str, Any]:
        return {"loss": self.model.right_loss(batch), "model_outputs": None, "batch_size": len(batch[0])}

    def phase(self, name: str, **kwargs: Any) -> Phase:
        return Phase(name, self.streams["train"], getattr(self, f"{name}_loss"), self.optimizer[name], **kwargs)

    def phases(self, epoch: int) -> Iterable[Phase]:
        return type(self).plan(self, epoch)


def make(plan: Callable[[Any, int], Iterable[Phase]], *callbacks: Any) -> Any:
    model = TwoPlayers()
    kind = type("Planned", (PhasesTrainer,), {"plan": plan})
    return kind(model, None, optimizers_of(model), callbacks=callbacks, device="cpu", seed=1)


def batches_of(data: TensorDataset) -> list[Batch]:
    return list(zip(data.tensors[0].split(8), data.tensors[1].split(8), strict=True))


def by_hand(turns: Iterable[tuple[str, Batch]]) -> TwoPlayers:
    model = TwoPlayers()
    optimizers = optimizers_of(model)
    for name, batch in turns:
        getattr(model, f"{name}_loss")(batch).backward()
        optimizers[name].step()
        for optimizer in optimizers.values():
            optimizer.zero_grad()
    return model


def train(trainer: Any, data: TensorDataset, epochs: int = 2, **kwargs: Any) -> Any:
    return trainer.train(data, epochs, train_dataloader_kwargs={"shuffle": False}, **kwargs)


def assert_equal(model: nn.Module, expected: nn.Module) -> None:
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_two_optimizers_take_turns_by_step(data: TensorDataset) -> None:
    trainer = make(lambda self, epoch: alternate(self.phase("left", steps=1), self.phase("right", steps=1)))
    result = train(trainer, data)
    first, second, third = batches_of(data)
    # The third batch goes to the left; nothing is left over for the right, and each epoch begins anew.
    turns = [("left", first), ("right", second), ("left", third)]
    assert_equal(trainer.model, by_hand(turns * 2))
    assert result.steps == 6


def test_two_optimizers_take_turns_on_the_same_batch(data: TensorDataset) -> None:
    trainer = make(lambda self, epoch: alternate(self.phase("left", steps=1), self.phase("right", steps=1, reuse=True)))
    result = train(trainer, data)
    turns = [(name, batch) for batch in batches_of(data) for name in ("left", "right")]
    assert_equal(trainer.model, by_hand(turns * 2))
    assert (result.steps, trainer.progress.samples) == (12, 96)


def test_one_optimizer_may_make_several_steps_for_one_of_the_other(data: TensorDataset) -> None:
    trainer = make(lambda self, epoch: alternate(self.phase("left", steps=2), self.phase("right")))
    train(trainer, data, 1)
    first, second, third = batches_of(data)
    assert_equal(trainer.model, by_hand([("left", first), ("left", second), ("right", third)]))


def test_phases_may_change_with_the_epoch(data: TensorDataset) -> None:
    trainer = make(lambda self, epoch: [self.phase("left" if epoch % 2 == 0 else "right")])
    train(trainer, data, 3)
    turns = [(name, batch) for name in ("left", "right", "left") for batch in batches_of(data)]
    assert_equal(trainer.model, by_hand(turns))


def test_a_phase_of_some_parameters_leaves_no_gradient_elsewhere(data: TensorDataset) -> None:
    gradients: list[Any] = []

    class Watching(PhasesTrainer):
        def optimizer_step(self) -> None:
            gradients.append(self.model.left.weight.grad)
            super().optimizer_step()

        def phases(self, epoch: int) -> Iterable[Phase]:
            yield self.phase("right", parameters=list(self.model.right.parameters()))

    model = TwoPlayers()
    trainer = Watching(model, None, optimizers_of(model), callbacks=(), device="cpu")
    train(trainer, data, 1)
    assert gradients == [None, None, None]
    assert_equal(trainer.model, by_hand([("right", batch) for batch in batches_of(data)]))


def test_a_phase_may_draw_from_data_of_its_own(data: TensorDataset) -> None:
    other = TensorDataset(data.tensors[0][:8] + 1, data.tensors[1][:8])

    class Own(PhasesTrainer):
        def training_run_start(self) -> None:
            self.add_stream("other", other, batch_size=4, shuffle=False)

        def phases(self, epoch: int) -> Iterable[Phase]:
            yield self.phase("left")
            yield Phase("right", self.streams["other"], self.right_loss, self.optimizer["right"])

    model = TwoPlayers()
    trainer = Own(model, None, optimizers_of(model), callbacks=(), device="cpu")
    train(trainer, data)
    pairs = list(zip(other.tensors[0].split(4), other.tensors[1].split(4), strict=True))
    turns = [*(("left", batch) for batch in batches_of(data)), *(("right", batch) for batch in pairs)]
    assert_equal(trainer.model, by_hand(turns * 2))


def test_each_phase_has_a_schedule_and_an_accumulation_of_its_own(data: TensorDataset) -> None:
    from torch.optim.lr_scheduler import StepLR

    class Scheduled(PhasesTrainer):
        def create_scheduler(self) -> Any:
            return StepLR(self.optimizer["left"], step_size=1, gamma=0.5)

        def phases(self, epoch: int) -> Iterable[Phase]:
            yield self.phase("left", scheduler=self.scheduler, accumulation=3)
            yield self.phase("right")

    model = TwoPlayers()
    trainer = Scheduled(model, None, optimizers_of(model), callbacks=(), device="cpu")
    result = train(trainer, data, 2)
    assert result.steps == 2
    assert trainer.optimizer["left"].param_groups[0]["lr"] == 0.05 * 0.25
    assert trainer.optimizer["right"].param_groups[0]["lr"] == 0.01


def test_the_step_limit_holds_within_and_between_phases(data: TensorDataset) -> None:
    trainer = make(lambda self, epoch: alternate(self.phase("left", steps=1), self.phase("right", steps=1, reuse=True)))
    assert train(trainer, data, 5, max_steps=3).steps == 3
    first, second, _ = batches_of(data)
    assert_equal(trainer.model, by_hand([("left", first), ("right", first), ("left", second)]))


def test_a_loss_verb_may_be_any_callable(data: TensorDataset) -> None:
    class Partial(PhasesTrainer):
        def named_loss(self, name: str, batch: Batch) -> dict[str, Any]:
            return dict(getattr(self, f"{name}_loss")(batch))

        def phases(self, epoch: int) -> Iterable[Phase]:
            loss = functools.partial(self.named_loss, "left")
            yield Phase("left", self.streams["train"], loss, self.optimizer["left"])

    model = TwoPlayers()
    trainer = Partial(model, None, optimizers_of(model), callbacks=(), device="cpu")
    assert train(trainer, data, 1).steps == 3


PLANS: dict[str, Callable[[Any, int], Iterable[Phase]]] = {
    "turns": lambda self, epoch: alternate(self.phase("left", steps=1), self.phase("right", steps=1)),
    "same batch": lambda self, epoch: alternate(self.phase("left", steps=1), self.phase("right", steps=1, reuse=True)),
    "by epoch": lambda self, epoch: [self.phase("left" if epoch % 2 == 0 else "right")],
    "two for one": lambda self, epoch: alternate(self.phase("left", steps=2), self.phase("right", steps=2, reuse=True)),
}


@pytest.mark.parametrize("plan", list(PLANS))
def test_a_run_with_phases_is_continued_from_any_step_exactly(data: TensorDataset, tmp_path: Path, plan: str) -> None:
    def run(**kwargs: Any) -> tuple[Any, Any]:
        trainer = make(PLANS[plan], SaveTrainingStateCallback(tmp_path, save_every_n_steps=1), Updates())
        return trainer, trainer.train(data, 2, **kwargs)

    whole, expected = run()
    for step in range(1, expected.steps):
        resumed, result = run(resume_from=tmp_path / f"step_{step}")
        assert result.steps == expected.steps, f"continued from step {step}"
        assert updates_of(resumed) == (step, expected.steps - step)
        assert_equal(resumed.model, whole.model)
        assert result.history == expected.history


def test_a_schedule_for_optimizers_that_take_turns_is_an_error_that_says_where_it_belongs(data: TensorDataset) -> None:
    from torch.optim.lr_scheduler import StepLR

    class Turns(Trainer):
        def phases(self, epoch: int) -> Any:
            raise AssertionError("the run must not get here")

    model = TwoPlayers()
    trainer = Turns(model, nn.MSELoss(), optimizers_of(model), callbacks=(), device="cpu")
    match = r"create_scheduler_fn is for optimizers that step together; .* override create_scheduler"
    with pytest.raises(ConfigError, match=match):
        trainer.train(data, 1, create_scheduler_fn=lambda optimizer: StepLR(optimizer, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"accumulation": 0}, "phase 'left': accumulation=0 must be at least 1"),
        ({"steps": 0}, "phase 'left': steps=0 must be at least 1"),
        ({"reuse": True}, "phase 'left': reuse=True never ends by itself; set steps=1"),
    ],
)
def test_a_phase_that_cannot_work_is_refused_by_name(
    data: TensorDataset, arguments: dict[str, Any], message: str
) -> None:
    trainer = make(lambda self, epoch: [self.phase("left", **arguments)])
    with pytest.raises(ConfigError, match=message):
        train(trainer, data)
