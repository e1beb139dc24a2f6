"""Losses and penalties against their formulas."""

import pytest
import torch

from treadle.recsys.models import (
    BPRLoss,
    EmbLoss,
    EmbMarginLoss,
    RegLoss,
    xavier_normal_initialization,
    xavier_uniform_initialization,
)


def test_bpr_loss_is_the_mean_of_minus_log_sigmoid() -> None:
    loss = BPRLoss()(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]))
    expected = (torch.log1p(torch.exp(torch.tensor(-1.0))) + torch.log1p(torch.exp(torch.tensor(2.0)))) / 2
    torch.testing.assert_close(loss, expected)


def test_bpr_loss_compares_a_positive_with_several_negatives() -> None:
    positive, negatives = torch.tensor([1.0, 3.0]), torch.tensor([[0.0, 2.0], [1.0, 5.0]])
    pairs = BPRLoss()(positive.repeat_interleave(2), negatives.reshape(-1))
    assert BPRLoss()(positive, negatives) == pairs


def test_bpr_loss_has_a_gradient_where_a_sigmoid_has_none_left() -> None:
    apart = torch.tensor([-200.0], requires_grad=True)
    loss = BPRLoss()(apart, torch.zeros(1))
    loss.backward()
    assert loss.item() == 200
    assert apart.grad is not None
    assert apart.grad.item() == -1


def test_gamma_bounds_the_bpr_loss_as_in_recbole() -> None:
    differences = torch.tensor([-200.0, 0.3, 4.0])
    expected = -(1e-10 + differences.double().sigmoid()).log().mean()
    found = BPRLoss(gamma=1e-10)(differences, torch.zeros(3))
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_losses_of_half_precision_are_calculated_in_float32(dtype: torch.dtype) -> None:
    values = torch.full((64, 8), 200.0, dtype=dtype)
    assert BPRLoss()(values[:, 0], values[:, 1]).dtype == torch.float32
    assert EmbLoss()(values, require_pow=True).item() == 8 * 200**2 / 2  # its sum, 2.5 million, is no float16
    assert RegLoss()([values]).dtype == EmbMarginLoss()(values).dtype == torch.float32


def test_the_penalty_on_embeddings_is_of_norms_or_of_half_squares() -> None:
    first, second = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[0.0, 2.0], [1.0, 2.0]])
    assert EmbLoss()(first, second).item() == (5 + 3) / 2
    assert EmbLoss()(first, second, require_pow=True).item() == (25 + 9) / 2 / 2
    assert EmbLoss()(torch.cat([first, second]), require_pow=True, rows=2).item() == (25 + 9) / 2 / 2
    assert EmbLoss(norm=1)(first, second).item() == (7 + 5) / 2


def test_the_penalty_on_parameters_adds_norms() -> None:
    assert RegLoss()([torch.tensor([3.0, 4.0]), torch.tensor([[2.0]])]).item() == 7


def test_the_margin_penalty_is_of_what_is_above_one() -> None:
    first, second = torch.tensor([[3.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    assert EmbMarginLoss()(first, second).item() == (8 + 3) / 2


def test_gradients_of_norms_are_finite_at_zero() -> None:
    zero = torch.zeros(3, 2, requires_grad=True)
    EmbLoss()(zero).backward()
    assert zero.grad is not None
    assert not zero.grad.any()


@pytest.mark.parametrize("draw", [xavier_normal_initialization, xavier_uniform_initialization])
def test_weights_are_drawn_by_the_sizes_of_a_layer_and_biases_are_zero(draw: object) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.Embedding(400, 200), torch.nn.LayerNorm(3))
    layers.apply(draw)  # type: ignore[arg-type]
    linear, embedding, norm = layers
    assert not linear.bias.any()  # type: ignore[operator, union-attr]
    assert linear.weight.std().item() == pytest.approx((2 / 800) ** 0.5, rel=0.02)  # type: ignore[operator, union-attr]
    assert embedding.weight.std().item() == pytest.approx((2 / 600) ** 0.5, rel=0.02)  # type: ignore[operator, union-attr]
    assert norm.weight.tolist() == [1, 1, 1]  # type: ignore[operator, union-attr]
