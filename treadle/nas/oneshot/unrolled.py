"""The gradient of an architecture through one step of the weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

PERTURBATION = 0.01
"""How far the weights are moved, in norm, to see how a gradient changes."""
SMALLEST = 1e-12


class VirtualStep:
    """Weights that are moved to where an optimizer would move them, and put back to the last bit.

    Args:
        optimizer: The optimizer of the weights, which is not stepped.
        weights: The weights that it would move.
        model: Whose buffers are put back too.
        rates: The learning rate of each group of the optimizer, on the device.
    """

    def __init__(
        self, optimizer: Optimizer, weights: Sequence[nn.Parameter], model: nn.Module, rates: Sequence[Tensor]
    ) -> None:
        self._optimizer, self._rates = optimizer, rates
        self._weights: list[Tensor] = list(weights)
        self._before = [weight.detach().clone() for weight in self._weights]
        self._buffers = [buffer for buffer in model.buffers() if buffer is not None]
        self._buffers_before = [buffer.clone() for buffer in self._buffers]
        self._groups = _group_of_each(optimizer)

    @torch.no_grad()
    def move(self, gradients: Sequence[Tensor]) -> None:
        """Move the weights as the optimizer would with these gradients: momentum and weight decay included."""
        for weight, gradient in zip(self._weights, gradients, strict=True):
            group, rate = self._settings(weight)
            direction, _ = _direction(self._optimizer, group, weight, gradient)
            weight.sub_(direction * rate)

    @torch.no_grad()
    def displace(self, directions: Sequence[Tensor], factor: Tensor) -> None:
        """Put the weights at a distance from where they were."""
        steps = torch._foreach_mul(list(directions), factor)
        torch._foreach_copy_(self._weights, torch._foreach_add(self._before, steps))

    @torch.no_grad()
    def scaled(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return gradients, each times how far its weight moves for a gradient of one."""
        found = []
        for weight, gradient in zip(self._weights, gradients, strict=True):
            group, rate = self._settings(weight)
            _, gain = _direction(self._optimizer, group, weight, gradient)
            found.append(gradient * (rate * gain))
        return found

    @torch.no_grad()
    def put_back(self, *, weights: bool = True) -> None:
        """Put the buffers back, and the weights."""
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._buffers_before)
        if weights:
            torch._foreach_copy_(self._weights, self._before)

    def _settings(self, weight: Tensor) -> tuple[dict[str, Any], Tensor]:
        place = self._groups[id(weight)]
        return self._optimizer.param_groups[place], self._rates[place]


def _group_of_each(optimizer: Optimizer) -> dict[int, int]:
    groups = enumerate(optimizer.param_groups)
    return {id(parameter): place for place, group in groups for parameter in group["params"]}


def _direction(optimizer: Optimizer, group: dict[str, Any], weight: Tensor, gradient: Tensor) -> tuple[Tensor, float]:
    """Return where an optimizer would move a weight, for a rate of one, and by how much for each unit of gradient.

    Of SGD it is exactly its next step. Of others it is a step down the gradient with weight decay: what they make of a
    gradient depends on the gradients before.
    """
    direction = gradient + group.get("weight_decay", 0.0) * weight.detach()
    momentum = group.get("momentum", 0.0)
    if not isinstance(optimizer, SGD) or not momentum:
        return direction, 1.0
    buffer = optimizer.state.get(weight, {}).get("momentum_buffer")
    gain = 1.0 if buffer is None else 1.0 - group["dampening"]
    moving = direction if buffer is None else buffer * momentum + direction * gain
    if group["nesterov"]:
        return direction + moving * momentum, 1.0 + momentum * gain
    return moving, gain


def second_order(
    first: Sequence[Tensor], above: Sequence[Tensor], below: Sequence[Tensor], eps: Tensor
) -> list[Tensor]:
    """Return the gradient of an architecture at moved weights, corrected for how the move depends on it.

    Args:
        first: The gradient of the validation loss at the moved weights.
        above: That of the training loss with the weights displaced along the direction.
        below: The same, displaced the other way.
        eps: By what multiple of the direction they were displaced.
    """
    change = torch._foreach_sub(list(above), list(below))
    return list(torch._foreach_sub(list(first), torch._foreach_div(change, 2 * eps)))


def displacement(directions: Sequence[Tensor]) -> Tensor:
    """Return the multiple of a direction that is as long as weights are to be displaced."""
    return PERTURBATION / torch.nn.utils.get_total_norm(list(directions)).clamp_min(SMALLEST)
