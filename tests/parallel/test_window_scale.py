"""The weights of a window's losses: counts on the device, counts of nothing, sums."""

import pytest
import torch
from torch import Tensor, nn, tensor

from treadle.optim.gradients import WindowScale, clip_by_norm, clip_by_value, joint_norm

Weights = list[float] | list[Tensor]


def gradient_of(weights: Weights, losses: list[float], *, reduction: str = "mean") -> float:
    """Return the gradient that a window gives a factor before all losses."""
    scale = WindowScale(reduction)
    factor = tensor(1.0, dtype=torch.float64, requires_grad=True)
    scale.begin(len(weights))
    for weight, loss in zip(weights, losses, strict=True):
        scale.share(factor * loss, weight).backward()
    assert factor.grad is not None
    scale.normalise([factor.grad])
    return float(factor.grad)


@pytest.mark.parametrize("weights", [[3, 5, 4], [tensor(3), tensor(5), tensor(4)]])
def test_losses_count_by_their_weight(weights: Weights) -> None:
    # (3 * 7 + 5 * 11 + 4 * 13) / 12, in float64 although a count is a whole number
    assert gradient_of(weights, [7.0, 11.0, 13.0]) == pytest.approx(128 / 12, rel=1e-15)


@pytest.mark.parametrize("weights", [[0, 5], [tensor(0), tensor(5)]])
def test_a_window_may_begin_with_a_micro_batch_of_nothing(weights: Weights) -> None:
    assert gradient_of(weights, [0.0, 11.0]) == pytest.approx(11.0, rel=1e-15)


@pytest.mark.parametrize("weights", [[0, 0], [tensor(0), tensor(0)]])
def test_a_window_of_nothing_has_no_gradient(weights: Weights) -> None:
    assert gradient_of(weights, [0.0, 0.0]) == 0.0


def test_a_window_of_one_micro_batch_is_not_touched_nor_is_one_that_nobody_began() -> None:
    scale, loss, gradient = WindowScale("mean"), tensor(7.0), tensor(3.0)
    for _ in range(2):
        assert not scale.pending
        assert scale.share(loss, 4) is loss
        scale.normalise([gradient])
        assert gradient == 3.0
        scale.begin(1)


def test_summed_losses_are_summed() -> None:
    assert gradient_of([3, 5], [7.0, 11.0], reduction="sum") == 18.0


@pytest.mark.parametrize(("weight", "expected"), [(4, 14.0), (0, 0.0), (tensor(4), 14.0)])
def test_a_summed_loss_is_multiplied_by_the_ranks_unless_it_only_keeps_them_in_step(
    weight: float | Tensor, expected: float
) -> None:
    scale = WindowScale("sum", ranks=2)
    assert float(scale.share(tensor(7.0), weight, tensor(0.0))) == expected


def sparse_gradient() -> Tensor:
    """Return the gradient of an embedding whose row 1 was looked up twice: rows 1 and 3 with values 6 and 8."""
    embedding = nn.Embedding(5, 1, sparse=True)
    (embedding(tensor([1, 1, 3])) * tensor([[4.0], [2.0], [8.0]])).sum().backward()
    assert embedding.weight.grad is not None
    assert not embedding.weight.grad.is_coalesced()
    return embedding.weight.grad


def test_a_sparse_gradient_counts_with_its_rows_summed() -> None:
    assert float(joint_norm([sparse_gradient(), tensor([24.0])])) == 26.0  # 6 and 8 make 10; 10 and 24 make 26


def test_a_sparse_gradient_is_clipped_by_norm() -> None:
    gradient = sparse_gradient()
    clip_by_norm([gradient], 5.0)
    torch.testing.assert_close(gradient.to_dense().flatten(), tensor([0.0, 3.0, 0.0, 4.0, 0.0]))


def test_a_sparse_gradient_is_clipped_by_value() -> None:
    gradient, dense = sparse_gradient(), tensor([-9.0, 1.0])
    clip_by_value([gradient, dense], 7.0)
    assert gradient.to_dense().flatten().tolist() == [0.0, 6.0, 0.0, 7.0, 0.0]
    assert dense.tolist() == [-7.0, 1.0]
