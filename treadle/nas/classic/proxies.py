"""Zero-cost proxies: how good a network may become, guessed from one pass before any training."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError


def synflow(model: nn.Module, inputs: Tensor | Any) -> float:
    """Return how much signal can flow through a network: the sum of each weight times its gradient.

    All weights are made positive and the input is ones, so that neither data nor signs matter (Tanaka and others,
    2020). Batch norm is used as it is in evaluation. The network is left as it was.

    >>> with torch.random.fork_rng():
    ...     synflow(nn.Sequential(nn.Linear(2, 2, bias=False)), torch.zeros(1, 2)) > 0
    True

    Args:
        model: The network.
        inputs: A batch, or the shape of one without the number of samples; its values do not matter.
    """
    batch = inputs if isinstance(inputs, Tensor) else torch.zeros(1, *inputs)
    weights = _trained(model)
    signs = [weight.detach().sign() for weight in weights]
    was_training = model.training
    try:
        _scale(weights, signs)
        model.eval()
        output = model(torch.ones_like(batch[:1]).to(weights[0]))
        gradients = _gradients(_sum(output), weights)
        pairs = zip(weights, gradients, strict=True)
        return sum(float((weight.detach() * gradient).sum().abs()) for weight, gradient in pairs)
    finally:
        # A weight of 0 has the sign 0, which makes it 0 again.
        _scale(weights, signs)
        model.train(was_training)


def gradient_norm(model: nn.Module, inputs: Tensor, targets: Any, loss: Callable[[Any, Any], Tensor]) -> float:
    """Return the norm of the gradient of the loss on one batch, before any training.

    The network is left as it was, its buffers included.

    Args:
        model: The network.
        inputs: The inputs of a batch.
        targets: Its targets.
        loss: Called with output and targets.
    """
    weights = _trained(model)
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        gradients = _gradients(loss(model(inputs), targets), weights)
        return float(torch.stack([gradient.norm() for gradient in gradients]).norm())
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def parameter_count(model: nn.Module) -> float:
    """Return how many trained numbers a network has."""
    return float(sum(weight.numel() for weight in _trained(model)))


PROXIES: dict[str, Callable[..., float]] = {
    "synflow": synflow,
    "gradient_norm": gradient_norm,
    "parameter_count": parameter_count,
}


def make_proxy(given: Any) -> Callable[[Any], float]:
    """Return the function of a network that a search ranks candidates by; larger is better.

    Args:
        given: A function of the network, or the name of a proxy with the arguments that it has besides the network:
            `("synflow", {"inputs": (3, 32, 32)})`.

    Raises:
        ConfigError: There is no such proxy, or it lacks an argument.
    """
    if callable(given):
        return given  # type: ignore[no-any-return]
    name, arguments = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given, {})
    if not (isinstance(name, str) and name in PROXIES and isinstance(arguments, Mapping)):
        raise ConfigError(
            f"proxy={given!r} must be a function of the network, or a name out of {list(PROXIES)} with its arguments, "
            "such as ('synflow', {'inputs': (3, 32, 32)})"
        )
    needed = {"synflow": ["inputs"], "gradient_norm": ["inputs", "targets", "loss"], "parameter_count": []}[name]
    if sorted(needed) != sorted(arguments):
        raise ConfigError(f"proxy={given!r}: {name} needs the arguments {needed}, got {list(arguments)}")
    return lambda model: PROXIES[name](model, **arguments)


def _trained(model: nn.Module) -> list[Tensor]:
    found: list[Tensor] = [weight for weight in model.parameters() if weight.requires_grad]
    if not found:
        raise ConfigError(f"{type(model).__name__} has nothing to train, so no proxy says anything about it")
    return found


@torch.no_grad()
def _scale(weights: list[Tensor], signs: list[Tensor]) -> None:
    for weight, sign in zip(weights, signs, strict=True):
        weight.mul_(sign)


def _gradients(total: Tensor, weights: list[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(total, weights, allow_unused=True)
    return [torch.zeros_like(weight) if one is None else one for weight, one in zip(weights, found, strict=True)]


def _sum(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output.sum()
    parts = output.values() if isinstance(output, Mapping) else output
    return torch.stack([_sum(part) for part in parts]).sum()
