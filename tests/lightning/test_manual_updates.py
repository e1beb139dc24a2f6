"""Modules whose `training_step` makes the updates, with several optimizers: exact to the hand-written loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, TensorDataset

from tests.interrupting import CutAt, CutError, Updates, assert_same_bits
from treadle.errors import ConfigError, NonFiniteError
from treadle.lightning import StepModel, StepTrainer

POINTS = torch.randn(12, 2, generator=torch.Generator().manual_seed(1))


def loader() -> Any:
    return DataLoader(TensorDataset(POINTS), batch_size=4)


class Gan(StepModel):
    """A generator and a discriminator that take turns on every batch, each with a schedule."""

    def __init__(self, *, bound: float | None = None) -> None:
        super().__init__()
        self.automatic_optimization, self.bound = False, bound
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.generator = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
            self.discriminator = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 1))
        self.learning: set[tuple[bool, ...]] = set()

    def generator_loss(self, points: Tensor) -> Tensor:
        return softplus(-self.discriminator(self.generator(torch.randn(len(points), 3)))).mean()

    def discriminator_loss(self, points: Tensor) -> Tensor:
        made = self.generator(torch.randn(len(points), 3)).detach()
        return softplus(-self.discriminator(points)).mean() + softplus(self.discriminator(made)).mean()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer, schedule, loss_of in zip(
            self.optimizers(), self.lr_schedulers(), (self.generator_loss, self.discriminator_loss), strict=True
        ):
            self.toggle_optimizer(optimizer)
            networks = (self.generator, self.discriminator)
            self.learning.add(tuple(next(one.parameters()).requires_grad for one in networks))
            loss = loss_of(batch[0])
            self.log(loss_of.__name__, loss, on_epoch=True)
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=self.bound)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            self.untoggle_optimizer(optimizer)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("score", self.discriminator(batch[0]).mean())

    def configure_optimizers(self) -> Any:
        made = [
            torch.optim.Adam(self.generator.parameters(), lr=0.02, foreach=False),
            torch.optim.SGD(self.discriminator.parameters(), lr=0.1, momentum=0.9, foreach=False),
        ]
        return made, [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in made]

    def on_train_start(self) -> None:
        self.random_state = torch.get_rng_state()


def train(model: Gan, *callbacks: Any, epochs: int = 3, resume: Any = None, **options: Any) -> Any:
    trainer = StepTrainer(num_epochs=epochs, callbacks=callbacks, progress=False, device="cpu", log_every=1, **options)
    return trainer, trainer.fit(model, loader(), loader(), resume=resume)


def hand_written(state: Tensor, epochs: int = 3, bound: float | None = None) -> tuple[Gan, list[float]]:
    """Train the same by a loop that is written out, from a state of torch's generator."""
    model, sums = Gan(), []
    optimizers, schedules = model.configure_optimizers()
    torch.set_rng_state(state)
    for _ in range(epochs):
        for points in torch.split(POINTS, 4):
            losses = []
            for optimizer, schedule, loss_of in zip(
                optimizers, schedules, (model.generator_loss, model.discriminator_loss), strict=True
            ):
                loss = loss_of(points)
                model.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                if bound is not None:
                    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], bound)
                optimizer.step()
                schedule.step()
                losses.append(loss.detach())
            sums.append(float(torch.stack(losses).sum()))
    return model, sums


@pytest.mark.parametrize("bound", [None, 0.05])
def test_a_gan_ends_with_the_bits_of_the_loop_that_is_written_out(bound: float | None) -> None:
    model = Gan(bound=bound)
    trainer, result = train(model)
    wanted, sums = hand_written(model.random_state, bound=bound)
    assert_same_bits(model.state_dict(), wanted.state_dict())
    # A step is a call of training_step, and its loss all that was learnt from.
    assert (result.steps, model.global_step) == (9, 9)
    losses = [value for value, _ in trainer.core.storage.history("train_loss").values()]
    assert losses == pytest.approx(sums)
    assert result.history["train_loss_epoch"] == pytest.approx(
        [sum(sums[first : first + 3]) / 3 for first in (0, 3, 6)]
    )
    assert len(result.history["score"]) == len(result.history["generator_loss_epoch"]) == 3
    # While one learns, the weights of the other have no gradients; afterwards all do.
    assert model.learning == {(True, False), (False, True)}
    assert all(one.requires_grad for one in model.parameters())


def test_a_gan_that_is_killed_in_an_epoch_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = Gan()
    torch.manual_seed(3)
    train(whole, seed=1)
    torch.manual_seed(3)
    with pytest.raises(CutError):
        train(Gan(), CutAt(5), seed=1, run_dir=tmp_path, save_every=1)
    torch.manual_seed(4)
    model, updates = Gan(), Updates()
    _, result = train(model, updates, seed=1, run_dir=tmp_path, save_every=1, resume="auto")
    # What is due after the fifth update was not done any more.
    assert (updates.began, updates.made, result.steps) == (4, 5, 9)
    assert_same_bits(model.state_dict(), whole.state_dict())
    assert [one.get_last_lr() for one in model.lr_schedulers()] == [
        [pytest.approx(0.02 * 0.9**9)],
        [pytest.approx(0.1 * 0.9**9)],
    ]


class Classifier(StepModel):
    """One optimizer that is stepped in every second batch, and a loss that is returned."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.layer(batch[0]).square().mean()
        self.manual_backward(loss / 2)
        if batch_idx % 2:
            self.optimizers().step()
            self.optimizers().zero_grad()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_one_optimizer_can_be_stepped_now_and_then_and_a_returned_loss_is_the_loss(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Classifier()
    before = model.layer.weight.detach().clone()
    StepTrainer(max_steps=1, progress=False, device="cpu").fit(model, loader())
    assert torch.equal(model.layer.weight, before)
    assert "Classifier.training_step stepped no optimizer in this epoch" in capsys.readouterr().out
    result = StepTrainer(max_steps=2, progress=False, device="cpu").fit(model, loader())
    assert not torch.equal(model.layer.weight, before)
    assert model.lr_schedulers() is None
    assert result.history["train_loss_epoch"][0] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_norm": 1.0}, r"clip_norm=1.0\): Gan makes its updates itself .* call self.clip_gradients"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps=2"),
        ({"on_nonfinite": "skip"}, "leave a bad update out in training_step"),
        ({"execution": "compile"}, "execution='compile'.*runs eagerly"),
        ({"precision": "fp16"}, "precision='fp16' scales losses"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(Gan(), **options)


class Automatic(Gan):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = True

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(self.generator_loss(batch[0]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OddClipping(Gan):
    def clip_gradients(self, optimizer: Any, **given: Any) -> None:  # type: ignore[override]
        super().clip_gradients(optimizer, 1.0, "max")  # type: ignore[arg-type]


class ManySchedules(Gan):
    def configure_optimizers(self) -> Any:
        optimizers, schedules = super().configure_optimizers()
        return optimizers[:1], schedules


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Automatic, "called manual_backward, but the trainer makes its updates"),
        (OddClipping, "gradient_clip_algorithm='max'"),
        (ManySchedules, "returned 2 schedules for 1 optimizers"),
    ],
)
def test_what_does_not_go_together_is_told(kind: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(kind())


def test_a_loss_that_is_not_finite_ends_the_run() -> None:
    class Bad(Gan):
        def generator_loss(self, points: Tensor) -> Tensor:
            return 1 / torch.zeros(()) + super().generator_loss(points)

    with pytest.raises(NonFiniteError, match="loss is inf at step 1"):
        train(Bad())


def test_bf16_reaches_the_steps_of_such_a_module() -> None:
    class Watched(Gan):
        def generator_loss(self, points: Tensor) -> Tensor:
            self.dtype = self.generator(torch.randn(len(points), 3)).dtype
            return super().generator_loss(points)

    model = Watched()
    train(model, epochs=1, precision="bf16")
    assert model.dtype == torch.bfloat16
