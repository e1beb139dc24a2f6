"""An update without what torch does around it is the same update, and is made only where nobody would notice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import treadle.optim.fused as module
from tests.guards.no_sync import DEVICES
from treadle import Trainer
from treadle.optim.fused import direct_step


def weights_of(device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(*shape, dtype=dtype).to(device)) for shape in ((5, 3), (7,), (2, 2))]


def give_gradients(weights: list[nn.Parameter], step: int, *, without: int | None = None) -> None:
    generator = torch.Generator().manual_seed(step)
    for number, weight in enumerate(weights):
        gradient = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.grad = None if number == without else gradient.to(weight)


def numbers_of(weights: list[nn.Parameter], optimizer: Optimizer) -> list[Tensor]:
    moments = [value for weight in weights for value in optimizer.state[weight].values()]
    return [weight.detach().clone() for weight in weights] + [moment.clone() for moment in moments]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the updates of groups that are made directly."""
    made: list[int] = []
    plain = module._make

    def make(*arguments: Any) -> None:
        made.append(len(made))
        plain(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_make", make)
        yield made


def run(
    make: Callable[[list[nn.Parameter]], Optimizer],
    step: Callable[[Optimizer], Any],
    *,
    weights: list[nn.Parameter] | None = None,
    without: int | None = None,
    steps: int = 4,
) -> list[Tensor]:
    weights = weights_of() if weights is None else weights
    optimizer = make(weights)
    for number in range(steps):
        give_gradients(weights, number, without=without if number % 2 else None)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        step(optimizer)
    return numbers_of(weights, optimizer)


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("without", [None, 1], ids=["all gradients", "one gradient is missing"])
def test_the_update_is_that_of_torch_bit_by_bit(
    kind: type[Adam], dtype: torch.dtype, device: str, without: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(weights: list[nn.Parameter]) -> Optimizer:
        groups: list[dict[str, Any]] = [{"params": weights[:2], "weight_decay": 0.1}, {"params": weights[2:]}]
        groups[1]["betas"] = (0.5, 0.6)
        return kind(groups, lr=0.1, eps=1e-3, fused=True)

    expected = run(make, lambda one: one.step(), weights=weights_of(device, dtype), without=without)
    with counted(monkeypatch) as made:
        found = run(make, direct_step, weights=weights_of(device, dtype), without=without)
    assert same(found, expected)
    assert len(made) == 3 * 2  # the first of four updates, of two groups, makes the state


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.1},
    "dampening": {"momentum": 0.9, "dampening": 0.3},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("without", [None, 1], ids=["all gradients", "one gradient is missing"])
def test_the_update_of_a_fused_sgd_is_that_of_torch_bit_by_bit(
    settings: str, device: str, without: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(weights: list[nn.Parameter]) -> Optimizer:
        groups: list[dict[str, Any]] = [{"params": weights[:2]}, {"params": weights[2:], "lr": 0.3}]
        return torch.optim.SGD(groups, lr=0.1, fused=True, **SETTINGS[settings])

    expected = run(make, lambda one: one.step(), weights=weights_of(device), without=without)
    with counted(monkeypatch) as made:
        found = run(make, direct_step, weights=weights_of(device), without=without)
    assert same(found, expected)
    # Momenta are made by the first of four updates, of two groups.
    assert len(made) == (3 if "momentum" in SETTINGS[settings] else 4) * 2


def test_a_momentum_that_is_late_is_made_by_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(weights: list[nn.Parameter]) -> Optimizer:
        optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9, fused=True)
        optimizer.register_step_pre_hook(module.give_momenta)
        return optimizer

    ends = []
    for step in (direct_step, torch.optim.SGD.step):
        weights = weights_of()
        optimizer = make(weights)
        with counted(monkeypatch) as made:
            for number in range(4):
                give_gradients(weights, number, without=2 if number < 2 else None)
                step(optimizer)
        ends.append((numbers_of(weights, optimizer), len(made)))
    assert same(ends[0][0], ends[1][0])
    # The first update and the third, in which a weight has its first gradient, are the optimizer's own.
    assert [made for _, made in ends] == [2, 0]


def test_adam_with_decay_beside_the_gradient_is_updated_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(weights: list[nn.Parameter]) -> Optimizer:
        return Adam(weights, lr=0.1, weight_decay=0.1, fused=True, decoupled_weight_decay=True)

    with counted(monkeypatch) as made:
        assert same(run(make, direct_step), run(make, lambda one: one.step()))
    assert len(made) == 3


def test_a_group_whose_weights_have_no_gradient_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = weights_of()
    optimizer = Adam([{"params": weights[:1]}, {"params": weights[1:]}], fused=True)
    give_gradients(weights, 0)
    direct_step(optimizer)
    before = weights[0].detach().clone()
    weights[0].grad = None
    with counted(monkeypatch) as made:
        direct_step(optimizer)
    assert len(made) == 1
    assert torch.equal(weights[0], before)
    assert optimizer.state[weights[0]]["step"] == 1


class Own(Adam):
    """Somebody's own kind of Adam."""


def mixed(weights: list[nn.Parameter]) -> Optimizer:
    weights[1].data = weights[1].data.double()
    return Adam(weights, fused=True)


OTHERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "not fused": lambda weights: Adam(weights),
    "amsgrad": lambda weights: Adam(weights, amsgrad=True, fused=True),
    "maximize": lambda weights: Adam(weights, maximize=True, fused=True),
    "a rate in a tensor": lambda weights: Adam(weights, lr=torch.tensor(0.1), fused=True),
    "another optimizer": lambda weights: torch.optim.RMSprop(weights, lr=0.1),
    "SGD that is not fused": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.5),
    "SGD that maximizes": lambda weights: torch.optim.SGD(weights, lr=0.1, maximize=True, fused=True),
    "a subclass": lambda weights: Own(weights, fused=True),
    "two types in a group": mixed,
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_optimizer_out_of_the_ordinary_makes_its_update_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch) as made:
        found = run(OTHERS[name], direct_step)
    assert not made
    assert same(found, run(OTHERS[name], lambda one: one.step()))


@contextmanager
def unwrapped(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note the steps that are made without what torch puts around them."""
    made: list[str] = []
    plain = module._code_of

    def code_of(kind: Any) -> Any:
        made.append(kind.__name__)
        return plain(kind)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_code_of", code_of)
        yield made


@pytest.mark.parametrize("settings", [{}, {"foreach": True}, {"weight_decay": 0.1, "maximize": True}], ids=str)
@pytest.mark.parametrize("kind", module.WRAPPED, ids=lambda kind: kind.__name__)
def test_every_optimizer_of_torch_is_stepped_by_its_code_alone(
    kind: Any, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is torch.optim.Rprop:
        settings = {name: value for name, value in settings.items() if name != "weight_decay"}

    def make(weights: list[nn.Parameter]) -> Optimizer:
        optimizer: Optimizer = kind(weights, lr=0.1, **settings)
        return optimizer

    with unwrapped(monkeypatch) as made:
        found = run(make, direct_step)
    assert made == [kind.__name__] * 4
    assert same(found, run(make, lambda one: one.step()))


def test_a_step_that_somebody_hooks_or_differentiates_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = weights_of()
    optimizer = torch.optim.RMSprop(weights, lr=0.1)
    give_gradients(weights, 0)
    seen: list[Any] = []
    with unwrapped(monkeypatch) as made:
        handle = optimizer.register_step_post_hook(lambda one, *_: seen.append(one))
        direct_step(optimizer)
        handle.remove()
        assert (seen, made) == ([optimizer], [])
        direct_step(optimizer)
        assert (seen, made) == ([optimizer], ["RMSprop"])
        optimizer.param_groups[0]["differentiable"] = True
        with torch.no_grad():
            direct_step(optimizer)
    assert made == ["RMSprop"]


def test_weights_hold_no_history_of_a_step_that_is_made_alone() -> None:
    weights = weights_of()
    optimizer = torch.optim.Adagrad(weights, lr=0.1)
    give_gradients(weights, 0)
    direct_step(optimizer)
    assert all(weight.is_leaf and weight.grad_fn is None for weight in weights)


def stepped() -> tuple[list[nn.Parameter], Adam]:
    """Return weights with gradients, and an optimizer that has made an update."""
    weights = weights_of()
    optimizer = Adam(weights, lr=0.1, fused=True)
    give_gradients(weights, 0)
    optimizer.step()
    return weights, optimizer


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("whose", ["its own", "everybody's"])
def test_hooks_are_called(when: str, whose: str) -> None:
    _, optimizer = stepped()
    called: list[Optimizer] = []

    def hook(one: Optimizer, *_: Any) -> None:
        called.append(one)

    own = {"before": optimizer.register_step_pre_hook, "after": optimizer.register_step_post_hook}
    everybody = {"before": register_optimizer_step_pre_hook, "after": register_optimizer_step_post_hook}
    handle: Any = (own if whose == "its own" else everybody)[when](hook)
    try:
        direct_step(optimizer)
    finally:
        handle.remove()
    direct_step(optimizer)
    assert called == [optimizer]


def test_a_step_that_was_replaced_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    _, optimizer = stepped()
    called: list[str] = []
    monkeypatch.setattr(optimizer, "step", lambda: called.append("of the object"))
    direct_step(optimizer)
    monkeypatch.delattr(optimizer, "step")
    monkeypatch.setattr(Adam, "step", lambda self: called.append("of the class"))
    direct_step(optimizer)
    assert called == ["of the object", "of the class"]


def test_a_schedule_of_torchs_is_told_of_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    _, optimizer = stepped()
    schedules: list[Any] = [torch.optim.lr_scheduler.StepLR(optimizer, 1) for _ in range(2)]
    with counted(monkeypatch) as made:
        direct_step(optimizer)
    assert len(made) == 1
    for schedule in schedules:
        schedule.step()  # it warns, and warnings are errors here, if no update came before
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_what_somebody_put_around_the_step_of_a_schedule_is_called() -> None:
    optimizer: Any = stepped()[1]
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    plain, called = optimizer.step, []

    @wraps(plain)  # takes over the mark that the schedule made
    def own(*arguments: Any) -> Any:
        called.append("own")
        return plain(*arguments)

    optimizer.step = own
    direct_step(optimizer)
    assert called == ["own"]


def test_a_profiler_sees_the_update() -> None:
    _, optimizer = stepped()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        direct_step(optimizer)
    assert "Optimizer.step#Adam.step" in {event.key for event in profile.key_averages()}


def test_a_sparse_gradient_is_refused_as_torch_does() -> None:
    weights, optimizer = stepped()
    weights[0].grad = torch.ones(5, 3).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        direct_step(optimizer)


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq"])
def test_a_state_of_another_type_than_the_weights_is_an_error(name: str) -> None:
    weights, optimizer = stepped()
    optimizer.state[weights[0]][name] = torch.zeros(5, 3, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"(?i)type"):
        direct_step(optimizer)


def test_the_scale_of_gradients_is_taken_into_account() -> None:
    found, expected = stepped(), stepped()
    for (_, optimizer), step in ((found, direct_step), (expected, Adam.step)):
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)  # type: ignore[attr-defined]
        step(optimizer)
    assert same(numbers_of(*found), numbers_of(*expected))


def test_a_trainer_updates_directly_from_its_second_step_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(Trainer):
        def optimizer_step(self) -> None:
            self.optimizer.step()

    def trained(kind: type[Trainer]) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        rows = torch.utils.data.TensorDataset(torch.randn(12, 3), torch.randn(12, 1))
        trainer = kind(model=model, loss_func=nn.MSELoss(), optimizer=AdamW(model.parameters(), fused=True))
        trainer.train(rows, num_epochs=2, per_device_batch_size=4)
        return [weight.detach() for weight in model.parameters()]

    expected = trained(Plain)
    with counted(monkeypatch) as made:
        assert same(trained(Trainer), expected)
    assert len(made) == 5
