"""The gradient of a window: the same however its samples are split into micro-batches; and clipping."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader

from treadle.errors import ConfigError
from treadle.optim.gradients import (
    WindowScale,
    clip_by_norm,
    clip_by_value,
    forget_gradients,
    joint_norm,
    present_gradients,
)
from treadle.trainer import Trainer

MODERATE = settings(max_examples=40, deadline=None, derandomize=True, database=None)
SPLITS = st.lists(st.integers(1, 7), min_size=1, max_size=6)
"""How many samples each micro-batch of a window has."""

TOKENS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=5).filter(
    lambda batches: any(any(tokens) for tokens in batches)
)
"""How many tokens each sample of each micro-batch has; a micro-batch may have none at all."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


class Watched(Trainer):
    """Keeps the gradients that the optimizer was given at each update."""

    def optimizer_step(self) -> None:
        gradients = [parameter.grad.clone() for parameter in self.model.parameters()]
        self.updates = [*getattr(self, "updates", []), gradients]
        super().optimizer_step()


def window_gradient(kind: type[Watched], batches: list[Any], **kwargs: Any) -> list[Tensor]:
    """Return the gradient of one update over all of `batches`."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = kind(model, nn.MSELoss(), optimizer, callbacks=(), device="cpu", **kwargs)
    loader = DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch)
    assert trainer.train(loader, 1, gradient_accumulation_steps=len(batches)).steps == 1
    (gradients,) = trainer.updates
    return gradients


def assert_close(gradients: list[Tensor], loss: Tensor, model: nn.Module) -> None:
    expected = torch.autograd.grad(loss, list(model.parameters()))
    for got, wanted in zip(gradients, expected, strict=True):
        assert torch.allclose(got, wanted, rtol=1e-12, atol=1e-14)


def drawn(rows: int, features: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    inputs = torch.randn(rows, features, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(rows, 1, generator=generator, dtype=torch.float64)


@MODERATE
@given(split=SPLITS)
def test_a_window_of_means_has_the_gradient_of_one_batch_with_all_samples(split: list[int]) -> None:
    inputs, targets = drawn(sum(split))
    batches = list(zip(inputs.split(split), targets.split(split), strict=True))
    model = Model()
    assert_close(window_gradient(Watched, batches), nn.functional.mse_loss(model(inputs), targets), model)


class Summing(Watched):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        outputs = self.model(batch[0])
        return {"loss": (outputs - batch[1]).square().sum(), "model_outputs": outputs, "batch_size": len(batch[1])}


@MODERATE
@given(split=SPLITS)
def test_a_window_of_sums_has_the_gradient_of_the_sum_over_all_samples(split: list[int]) -> None:
    inputs, targets = drawn(sum(split))
    batches = list(zip(inputs.split(split), targets.split(split), strict=True))
    model = Model()
    gradients = window_gradient(Summing, batches, loss_reduction="sum")
    assert_close(gradients, (model(inputs) - targets).square().sum(), model)


def test_the_recorded_mean_of_sums_does_not_depend_on_how_the_samples_were_split() -> None:
    inputs, targets = drawn(12)
    recorded = []
    for size in (12, 5, 1):
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        trainer = Summing(model, None, optimizer, callbacks=(), device="cpu", loss_reduction="sum")
        batches = list(zip(inputs.split(size), targets.split(size), strict=True))
        loader = DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch)
        recorded += trainer.train(loader, 1).history["train_loss_epoch"]
    expected = (Model()(inputs) - targets).square().mean().item()
    assert recorded == pytest.approx([expected] * 3, rel=1e-12)


class OverTokens(Watched):
    """A mean over tokens, of which each sample of a batch has its own number."""

    counts_on_device = False

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, targets, tokens = batch
        outputs = self.model(inputs)
        total = ((outputs - targets).square()[:, 0] * tokens).sum()
        count: Any = tokens.sum() if self.counts_on_device else int(tokens.sum())
        return {
            "loss": total / max(1, int(tokens.sum())),
            "model_outputs": outputs,
            "batch_size": len(targets),
            "num_items_in_batch": count,
        }


class OverTokensOnDevice(OverTokens):
    counts_on_device = True


@pytest.mark.parametrize("kind", [OverTokens, OverTokensOnDevice])
def test_a_window_of_means_over_tokens_has_the_gradient_of_one_batch_with_all_tokens(kind: type[Watched]) -> None:
    @MODERATE
    @given(batches=TOKENS)
    def check(batches: list[list[int]]) -> None:
        tokens = [torch.tensor(counts) for counts in batches]
        split = [len(counts) for counts in batches]
        inputs, targets = drawn(sum(split))
        triples = list(zip(inputs.split(split), targets.split(split), tokens, strict=True))
        model, all_tokens = Model(), torch.cat(tokens)
        loss = ((model(inputs) - targets).square()[:, 0] * all_tokens).sum() / all_tokens.sum()
        assert_close(window_gradient(kind, triples), loss, model)

    check()


@pytest.mark.parametrize("kind", [OverTokens, OverTokensOnDevice])
def test_a_window_without_any_token_has_a_gradient_of_zero(kind: type[Watched]) -> None:
    inputs, targets = drawn(4)
    batches = [(inputs[:2], targets[:2], torch.tensor([0, 0])), (inputs[2:], targets[2:], torch.tensor([0, 0]))]
    assert all(not gradient.any() for gradient in window_gradient(kind, batches))


def test_the_next_window_does_not_remember_the_last() -> None:
    inputs, targets = drawn(9)
    batches = list(zip(inputs.split([1, 4, 2, 2]), targets.split([1, 4, 2, 2]), strict=True))
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = Watched(model, nn.MSELoss(), optimizer, callbacks=(), device="cpu")
    loader = DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch)
    trainer.train(loader, 1, gradient_accumulation_steps=2)
    first, second = trainer.updates
    assert_close(first, nn.functional.mse_loss(model(inputs[:5]), targets[:5]), model)
    assert_close(second, nn.functional.mse_loss(model(inputs[5:]), targets[5:]), model)


# The scale by itself ------------------------------------------------------------------------------------------


def test_one_micro_batch_on_one_process_is_not_touched() -> None:
    scale = WindowScale("mean")
    scale.begin(1)
    loss = torch.tensor(3.0)
    assert scale.share(loss, 7) is loss
    assert not scale.pending


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_equal_micro_batches_are_divided_by_their_number_and_by_nothing_else(parts: int) -> None:
    scale = WindowScale("mean")
    scale.begin(parts)
    loss = torch.tensor(0.7)
    assert all(torch.equal(scale.share(loss, 5), loss / parts) for _ in range(parts))
    gradient = torch.tensor([0.3])
    scale.normalise([gradient])
    assert torch.equal(gradient, torch.tensor([0.3]))


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ConfigError, match="loss_reduction='median' is unknown; use 'mean' or 'sum'"):
        WindowScale("median")


# Clipping -----------------------------------------------------------------------------------------------------


def gradients_and_twins(scale: float) -> tuple[list[Tensor], list[nn.Parameter]]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(3, 2), (4,), (), (2, 2, 2)]
    gradients = [torch.randn(shape, generator=generator) * scale for shape in shapes]
    twins = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for twin, gradient in zip(twins, gradients, strict=True):
        twin.grad = gradient.clone()
    return gradients, twins


@MODERATE
@given(scale=st.floats(1e-6, 1e6), limit=st.floats(1e-3, 1e3))
def test_clipping_by_norm_is_that_of_torch_to_the_last_bit(scale: float, limit: float) -> None:
    gradients, twins = gradients_and_twins(scale)
    expected = nn.utils.clip_grad_norm_(twins, limit)
    assert torch.equal(clip_by_norm(gradients, limit), expected)
    for gradient, twin in zip(gradients, twins, strict=True):
        assert torch.equal(gradient, twin.grad)


@MODERATE
@given(scale=st.floats(1e-6, 1e6), limit=st.floats(1e-3, 1e3))
def test_clipping_by_value_is_that_of_torch_to_the_last_bit(scale: float, limit: float) -> None:
    gradients, twins = gradients_and_twins(scale)
    nn.utils.clip_grad_value_(twins, limit)
    clip_by_value(gradients, limit)
    for gradient, twin in zip(gradients, twins, strict=True):
        assert torch.equal(gradient, twin.grad)


def test_the_norm_is_that_of_all_elements_together() -> None:
    assert joint_norm([torch.tensor([3.0]), torch.tensor([[4.0]])]).item() == 5.0


def test_nothing_at_all_can_be_clipped() -> None:
    assert clip_by_norm([], 1.0).item() == 0.0
    clip_by_value([], 1.0)


def sparse(rows: list[int], values: list[float]) -> Tensor:
    return torch.sparse_coo_tensor([rows], values, (5,), check_invariants=True)


def test_sparse_gradients_are_clipped_with_dense_ones() -> None:
    """A row that was met twice counts with its sum: 1 and 2 make 3."""
    gradients = [sparse([1, 1, 4], [1.0, 2.0, 0.0]), torch.tensor([4.0])]
    assert clip_by_norm(gradients, 0.5).item() == 5.0
    assert gradients[0].to_dense().tolist() == pytest.approx([0.0, 0.3, 0.0, 0.0, 0.0], rel=1e-5)
    assert gradients[1].tolist() == pytest.approx([0.4], rel=1e-5)


def test_sparse_gradients_are_clipped_by_value_with_dense_ones() -> None:
    gradients = [sparse([1, 1, 4], [1.0, 2.0, -0.25]), torch.tensor([4.0])]
    clip_by_value(gradients, 0.5)
    assert gradients[0].to_dense().tolist() == [0.0, 0.5, 0.0, 0.0, -0.25]
    assert gradients[1].tolist() == [0.5]


def test_only_gradients_that_are_there_are_taken_in_the_order_of_the_parameters() -> None:
    first, second, third = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    first.grad, third.grad = torch.tensor([1.0]), torch.tensor([3.0])
    assert [gradient.item() for gradient in present_gradients([third, second, first])] == [3.0, 1.0]


def test_the_gradients_of_all_groups_of_an_optimizer_are_forgotten() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    weights[0].grad, weights[2].grad = torch.ones(2), torch.ones(2)
    forget_gradients(torch.optim.SGD([{"params": weights[:2]}, {"params": weights[2:]}], lr=0.1))
    assert [one.grad for one in weights] == [None, None, None]


class Keeping(torch.optim.SGD):
    """Sets gradients to zero where others forget them."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=False)


@pytest.mark.parametrize("by_class", [True, False], ids=["of its class", "of its own"])
def test_an_optimizer_that_forgets_gradients_its_own_way_does_so(by_class: bool) -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = Keeping([weight], lr=0.1) if by_class else torch.optim.SGD([weight], lr=0.1)
    if not by_class:
        optimizer.zero_grad = lambda: weight.grad.zero_()  # type: ignore[method-assign, union-attr]
    forget_gradients(optimizer)
    assert weight.grad.tolist() == [0, 0]
