"""What one iteration is, whatever the mode and however the batch is split, and what the learning rate is in it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.parts import Classifier, Points, iterations_of, make_config
from treadle.config import LazyCall
from treadle.engine import DefaultTrainer, EagerTrainer, Graph, GraphTrainer, HookBase, hooks
from treadle.errors import ConfigError, LossError


class Rates(HookBase):
    """Notes the learning rate that each iteration uses."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def before_step(self) -> None:
        self.seen.append(round(self.trainer.optimizer.param_groups[0]["lr"], 6))


class Halving(DefaultTrainer):
    """Halves the rate after every iteration, if it has hooks for it."""

    schedules = 1

    def build_hooks(self) -> list[HookBase | None]:
        self.rates = Rates()
        return [self.rates, *(hooks.LRScheduler() for _ in range(self.schedules))]

    @classmethod
    def build_lr_scheduler(cls, cfg: Any, optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def test_with_the_schedule_hook_the_rate_moves_after_each_of_ten_iterations(tmp_path: Path) -> None:
    trainer = Halving(make_config(tmp_path))
    trainer.train()
    assert trainer.rates.seen == [round(0.1 * 0.5**k, 6) for k in range(10)]


def test_without_the_schedule_hook_the_rate_is_constant(tmp_path: Path) -> None:
    class Constant(Halving):
        schedules = 0

    trainer = Constant(make_config(tmp_path))
    trainer.train()
    assert trainer.rates.seen == [0.1] * 10


def test_the_schedule_hook_twice_is_an_error_when_it_is_registered(tmp_path: Path) -> None:
    class Twice(Halving):
        schedules = 2

    with pytest.raises(ConfigError, match="LRScheduler is registered twice; it would act twice in every step"):
        Twice(make_config(tmp_path))


def test_the_schedule_hook_without_a_schedule_says_where_to_put_one() -> None:
    model = Classifier()
    trainer = EagerTrainer(model, [], torch.optim.SGD(model.parameters(), lr=0.1))
    hook = hooks.LRScheduler()
    trainer.register_hooks([hook])
    with pytest.raises(ConfigError, match=r"hooks.LRScheduler finds no schedule; pass scheduler="):
        hook.before_train()


def test_the_step_is_announced_before_its_data_is_fetched_and_iter_moves_on_after_it() -> None:
    log: list[str] = []

    class Loader:
        def __iter__(self) -> Any:
            for number in range(2):
                log.append(f"fetch {number}")
                yield {"inputs": torch.ones(2, 2), "labels": torch.zeros(2, dtype=torch.long)}

    model = Classifier()
    trainer = EagerTrainer(model, Loader(), torch.optim.SGD(model.parameters(), lr=0.1))
    before = hooks.CallbackHook(
        before_step=lambda own: log.append(f"before {own.iter}"), after_step=lambda own: log.append(f"after {own.iter}")
    )
    trainer.register_hooks([before])
    trainer.train(0, 2)
    assert log == ["before 0", "fetch 0", "after 0", "before 1", "fetch 1", "after 1"]
    assert trainer.iter == 2


def graph_or_eager(mode: str, model: nn.Module, data: Any, optimizer: Any, steps: int) -> EagerTrainer:
    if mode == "eager":
        return EagerTrainer(model, data, optimizer, steps)
    return GraphTrainer(Graph(model, optimizer, backend="eager"), data, steps)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_b11_one_iteration_is_one_optimizer_step_and_periods_count_iterations(mode: str) -> None:
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stepped: list[int] = []
    optimizer.register_step_post_hook(lambda *args: stepped.append(1))
    loader = torch.utils.data.DataLoader(Points(24), batch_size=2)
    trainer = graph_or_eager(mode, model, loader, optimizer, 3)
    rates, evaluated = Rates(), list[int]()
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    evaluation = hooks.EvalHook(2, lambda: evaluated.append(trainer.iter + 1))
    trainer.register_hooks([rates, hooks.LRScheduler(scheduler=schedule), evaluation])
    trainer.train(0, 4)
    assert len(stepped) == 4
    assert rates.seen == [0.1, 0.05, 0.025, 0.0125]
    assert evaluated == [2, 5]  # after iteration 2, and at the end, where iter is already 4
    assert trainer.core.progress.samples == 4 * 3 * 2


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_b12_accumulated_micro_batches_equal_one_large_batch(mode: str) -> None:
    def train(size: int, accumulation: int) -> list[Tensor]:
        torch.manual_seed(0)
        model = Classifier().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        data = Points(24)
        data.points = data.points.double()
        loader = torch.utils.data.DataLoader(data, batch_size=size)
        trainer = graph_or_eager(mode, model, loader, optimizer, accumulation)
        trainer.train(0, 2)
        return [parameter.detach().clone() for parameter in model.parameters()]

    for own, reference in zip(train(4, 3), train(12, 1), strict=True):
        torch.testing.assert_close(own, reference, rtol=0, atol=1e-14)


class Tokens(nn.Module):
    """A loss that is a mean over the tokens that count, and says how many these are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, targets: Tensor) -> dict[str, Tensor]:
        valid = targets >= 0
        errors = (self.weight - targets) ** 2
        return {"lm_loss": errors[valid].mean(), "num_items_in_batch": valid.sum()}


def test_b12_a_loss_over_tokens_is_weighed_by_the_tokens_that_count() -> None:
    full = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    short = torch.tensor([[9.0, -1.0, -1.0, -1.0]], dtype=torch.float64)
    model = Tokens()
    trainer = EagerTrainer(
        model, [{"targets": full}, {"targets": short}], torch.optim.SGD(model.parameters(), lr=0.5), 2
    )
    trainer.train(0, 1)
    # The gradient of the mean over five tokens at 0 is -2 * 19 / 5; half of it, against its direction, is 19 / 5.
    assert model.weight.item() == pytest.approx(19 / 5, abs=1e-12)
    assert trainer.storage.latest()["total_loss"][0] == pytest.approx((1 + 4 + 9 + 16 + 81) / 5)


def test_losses_are_summed_and_every_number_is_reported() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, inputs: Tensor) -> dict[str, Any]:
            loss = (self.weight - inputs).pow(2).mean()
            return {"mlm_loss": loss, "sop_loss": 2 * loss, "accuracy": torch.tensor(0.5), "scores": inputs}

    model = Two()
    trainer = EagerTrainer(model, [{"inputs": torch.ones(4)}], torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.train(0, 1)
    latest = {name: value for name, (value, _) in trainer.storage.latest().items() if name != "data_time"}
    assert latest == {"mlm_loss": 1.0, "sop_loss": 2.0, "accuracy": 0.5, "total_loss": 3.0}
    assert model.weight.item() == pytest.approx(0.6)


def test_a_model_without_a_loss_is_told_how_to_name_it() -> None:
    model = nn.Linear(2, 1)
    named = {"scores": torch.zeros(())}
    model.forward = lambda inputs: named  # type: ignore[method-assign]
    trainer = EagerTrainer(model, [{"inputs": torch.ones(1, 2)}], torch.optim.SGD(model.parameters(), lr=0.1))
    message = (
        r"the model returned a dict with \['scores'\]; return a dict in which the name of each loss contains 'loss'"
    )
    with pytest.raises(LossError, match=message):
        trainer.train(0, 1)


class Remembering(EagerTrainer):
    """A step of your own, written for one micro-batch as users of this door write it."""

    previous_output: Any = None

    def run_step(self, get_batch: Any) -> None:  # type: ignore[override]
        data = get_batch(next(self._data_loader_iter))
        losses = self.model(**data)
        self.previous_output = losses
        (sum(losses.values()) / self.grad_acc_steps).backward()
        self.write_metrics(losses, 0.0)
        if (self.iter + 1) % self.grad_acc_steps == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


class Wrapping(EagerTrainer):
    """A step that does something around the built-in one."""

    calls = 0

    def run_step(self, get_batch: Any) -> None:  # type: ignore[override]
        super().run_step(get_batch)
        self.calls += 1


class WithInner(DefaultTrainer):
    """A trainer from a config whose steps an inner trainer of your own makes."""

    inner: Any = EagerTrainer

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        accumulation = self.cfg.train.num_accumulation_steps
        self._trainer = self.inner(self.model, self.train_loader, self.optimizer, accumulation)


@pytest.mark.parametrize("inner", [Remembering, Wrapping])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_step_of_ones_own_trains_like_the_built_in_one(tmp_path: Path, inner: Any, accumulation: int) -> None:
    kind = type("Own", (WithInner,), {"inner": inner})
    own = kind(make_config(tmp_path / "own", num_accumulation_steps=accumulation))
    own.train()
    reference = DefaultTrainer(make_config(tmp_path / "reference", num_accumulation_steps=accumulation))
    reference.train()
    for parameter, other in zip(own.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=0, atol=1e-6)
    assert own.core.progress.samples == reference.core.progress.samples == 80 * accumulation
    assert own.iter == 10
    if inner is Remembering:
        assert own._trainer.previous_output is not None


def test_a_step_of_ones_own_is_resumed_after_any_iteration(tmp_path: Path) -> None:
    kind = type("Own", (WithInner,), {"inner": Remembering})
    whole = kind(make_config(tmp_path / "whole", checkpointer={"period": 3}))
    whole.train()
    part = kind(make_config(tmp_path / "part", train_iter=10, checkpointer={"period": 3}))
    part.register_hooks([hooks.CallbackHook(after_step=lambda trainer: trainer.iter == 6 and 1 / 0)])
    with pytest.raises(ZeroDivisionError):
        part.train()
    resumed = kind(make_config(tmp_path / "part", resume=True))
    assert resumed.start_iter == 6
    made = iterations_of(resumed)
    resumed.train()
    assert made == [6, 7, 8, 9]
    for own, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(own, other)


def test_data_can_be_drawn_in_a_step_only() -> None:
    model = Classifier()
    trainer = EagerTrainer(model, [], torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="this EagerTrainer is not training; its data can be drawn in run_step only"):
        next(trainer._data_loader_iter)


def test_an_accumulation_below_one_is_refused() -> None:
    model = Classifier()
    with pytest.raises(ConfigError, match="grad_acc_steps=0 must be at least 1"):
        EagerTrainer(model, [], torch.optim.SGD(model.parameters(), lr=0.1), 0)


def test_a_run_step_of_the_outer_trainer_is_called_for_every_iteration(tmp_path: Path) -> None:
    class Outer(DefaultTrainer):
        calls = 0

        def run_step(self) -> None:
            super().run_step()
            self.calls += 1

    trainer = Outer(make_config(tmp_path / "outer"))
    trainer.train()
    reference = DefaultTrainer(make_config(tmp_path / "reference"))
    reference.train()
    assert trainer.calls == 10
    for own, other in zip(trainer.model.parameters(), reference.model.parameters(), strict=True):
        assert torch.equal(own, other)


def test_a_schedule_of_torchs_takes_no_lengths_and_gets_none(tmp_path: Path) -> None:
    scheduler = LazyCall(torch.optim.lr_scheduler.StepLR)(step_size=5, gamma=0.1)
    trainer = DefaultTrainer(make_config(tmp_path, scheduler=scheduler))
    trainer.train()
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
