"""Gradients of a window: weighed so that the split into micro-batches and ranks does not show, and clipped."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.errors import ConfigError
from treadle.ops.loss_items import Counted

LossReduction = Literal["mean", "sum"]
REDUCTIONS: tuple[LossReduction, ...] = get_args(LossReduction)
SMALLEST = 1e-12
"""What a window's weight is at least, where it is on the device and cannot be asked."""


class WindowScale:
    """Makes the gradient of a window that of one batch with all its samples, over all ranks.

    Each loss is a mean over its own weight w (samples, or tokens) or a sum. Means are multiplied by
    w / (nominal * parts) before backward and the gradient is divided by the sum of these factors afterwards:
    the nominal weight cancels, and keeps losses in the range of half precision. A window of one micro-batch on
    one process is not touched at all.

    Args:
        reduction: "mean" or "sum", what the loss is over its samples.
        ranks: How many processes share the window.
        nominal: The weight of an ordinary micro-batch, the same on every rank.
        rides: Whether a weight_param collects the factors of one rank too.

    Attributes:
        mean: Whether losses are means.
        pending: Whether the gradients of this window still have to be divided.
    """

    def __init__(self, reduction: str, *, ranks: int = 1, nominal: float | None = None, rides: bool = False) -> None:
        if reduction not in REDUCTIONS:
            raise ConfigError(f"loss_reduction={reduction!r} is unknown; use 'mean' or 'sum'")
        self.mean = reduction == "mean"
        self._ranks = ranks
        self._several = ranks > 1 or rides
        self._fixed_nominal = float(nominal or 32)
        self.begin(1)

    def begin(self, parts: int) -> None:
        """Start a window of `parts` micro-batches."""
        self._parts = parts
        self._total: Any = 0
        self._nominal: Any = None
        self.pending = self.mean and (parts > 1 or self._several)

    def share(self, loss: Tensor, weight: Any, weight_param: Tensor | None = None) -> Tensor:
        """Return the part of the window's loss that this micro-batch makes up.

        Args:
            loss: Its loss.
            weight: What the loss is a mean over: a number, a tensor on the device, or targets that were counted there.
            weight_param: A zero whose gradient collects the factors over all ranks.
        """
        if isinstance(weight, Counted) and self.mean:
            return self._share_counted(loss, weight, weight_param)
        weight = _exactly(weight, loss)
        if weight_param is None:
            return self._share_alone(loss, weight) if self.mean and self._parts > 1 else loss
        if not self.mean:
            # A batch that only keeps this rank in step weighs nothing; its sum is another rank's already.
            counts = isinstance(weight, Tensor) or weight > 0
            return loss * (self._ranks if counts else 0) + weight_param
        factor = self.factor(weight)
        shared: Tensor = loss * factor + weight_param * factor
        return shared

    def _share_counted(self, loss: Tensor, counted: Counted, weight_param: Tensor | None) -> Tensor:
        """Return the part that a loss over counted targets makes up; where all count, that of so many samples."""
        exact = torch.promote_types(loss.dtype, torch.float32)
        if weight_param is not None:
            factor: Tensor = self.factor(counted.items).to(exact)
            return loss * factor + weight_param * factor
        if self._parts == 1:
            return loss
        self._nominal = self._nominal or counted.whole or 1
        self._total = self._total + counted.items
        # The same quotient as for samples, to the last bit; where nothing counts the loss is zero already.
        quotient: Tensor = (self._nominal * self._parts / counted.items).to(exact)
        return loss / quotient

    def factor(self, weight: Any) -> Any:
        """Return what the mean loss of a micro-batch of this weight is multiplied by, the same on every rank."""
        return weight / (self._fixed_nominal * self._parts)

    def _share_alone(self, loss: Tensor, weight: Any) -> Tensor:
        if self._nominal is None:
            # Any weight will do, since it cancels; but the first micro-batch may have nothing to be a mean over.
            self._nominal = weight.clamp_min(1) if isinstance(weight, Tensor) else weight or 1
        self._total = self._total + weight
        expected = self._nominal * self._parts
        if isinstance(weight, Tensor):
            part: Tensor = loss * (weight / expected)
        else:
            # A division by the plain number of parts is what a hand-written loop does, to the last bit.
            part = loss / float(expected / weight) if weight else loss * 0.0
        return part

    def normalise(self, gradients: list[Tensor], collected: Tensor | None = None) -> None:
        """Divide `gradients` by the sum of the factors of this window.

        Args:
            gradients: The gradients to divide, in place.
            collected: The gradient of the weight_param, averaged over all ranks; None on one process.
        """
        if not self.pending or not gradients:
            return
        # A window that weighs nothing has gradients of zero, which must stay so.
        if collected is not None:
            _multiply(gradients, 1.0 / collected.clamp_min(SMALLEST))
            return
        expected = self._nominal * self._parts
        if isinstance(self._total, Tensor):
            _multiply(gradients, (expected / self._total.clamp_min(SMALLEST)).to(_factor_dtype(gradients)))
        elif self._total not in (0, expected):
            _multiply(gradients, expected / self._total)


def _factor_dtype(gradients: list[Tensor]) -> torch.dtype:
    """Return the type that a factor of `gradients` is rounded to: theirs, or that of single precision."""
    return torch.promote_types(gradients[0].dtype, torch.float32)


def _exactly(weight: Any, loss: Tensor) -> Any:
    """Return a count on the device in the type of `loss`, lest its quotients be rounded to the default type."""
    if not isinstance(weight, Tensor):
        return weight
    return weight.to(torch.promote_types(loss.dtype, torch.float32))


def _multiply(gradients: list[Tensor], factor: Any) -> None:
    dense = [gradient for gradient in gradients if not gradient.is_sparse]
    for gradient in gradients:
        if gradient.is_sparse:
            gradient.mul_(factor)
    if dense:
        # Gradients that are kept on the host are multiplied there.
        torch._foreach_mul_(dense, factor.squeeze().to(dense[0].device) if isinstance(factor, Tensor) else factor)


def present_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the gradients that are there, in the order of the parameters."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def forget_gradients(optimizer: Optimizer) -> None:
    """Drop the gradients of an optimizer's weights, as its `zero_grad` does, which is asked if it is not torch's own.

    Around the loop that drops them, torch's own keeps a record for profilers and keeps compilers out: on a CPU that
    takes ten times as long as the loop.
    """
    if type(optimizer).zero_grad is not Optimizer.zero_grad or "zero_grad" in vars(optimizer):
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def joint_norm(gradients: list[Tensor]) -> Tensor:
    """Return the joint norm of `gradients`, on their device."""
    return torch.nn.utils.get_total_norm([_elements(gradient) for gradient in gradients])


def _elements(gradient: Tensor) -> Tensor:
    """Return the elements of a gradient that are there; those of a sparse row that was met twice are summed."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def clip_by_norm(gradients: list[Tensor], limit: float, norm: Tensor | None = None) -> Tensor:
    """Scale `gradients` down so that their joint norm is at most `limit`; return the norm they had.

    Nothing is read from the device.

    Args:
        gradients: The gradients, or this rank's pieces of them.
        limit: The bound.
        norm: Their joint norm, where it is known.
    """
    norm = joint_norm(gradients) if norm is None else norm
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    _multiply(gradients, factor)
    return norm


def clip_by_value(gradients: list[Tensor], limit: float) -> None:
    """Force every element of `gradients` between -`limit` and `limit`."""
    dense = [gradient for gradient in gradients if not gradient.is_sparse]
    if dense:
        torch._foreach_clamp_min_(dense, -limit)
        torch._foreach_clamp_max_(dense, limit)
    for gradient in gradients:
        if gradient.is_sparse:
            summed = gradient.coalesce()
            summed.values().clamp_(-limit, limit)
            gradient.copy_(summed)
