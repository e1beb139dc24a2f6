"""The generator inside cuDNN that recurrent layers draw their dropout from.

Torch keeps one for each device, out of sight: no seed reaches it once it exists, and no state of torch's generators
holds it. But it is an argument of the operation that all recurrent layers come down to, so that it can be got hold of.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_held: dict[int, Tensor] = {}
"""The memory of the generator itself, by device; what is written there, cuDNN goes on with."""


def draws_in_cudnn(model: nn.Module, device: torch.device) -> bool:
    """Whether a model has recurrent layers whose dropout cuDNN draws."""
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    return device.type == "cuda" and any(layer.dropout > 0 and layer.num_layers > 1 for layer in layers)


def seed_cudnn_dropout(device: torch.device, seed: int) -> None:
    """Seed the generator of `device`; from now on `RandomState` holds it, too."""
    index = torch.cuda.current_device() if device.index is None else device.index
    found = _held.get(index)
    if found is None:
        found = _find(torch.device("cuda", index))
    if found is None:  # without cuDNN, torch draws this dropout from its own generator, too
        return
    _held[index] = found
    # The probability is no part of the generator: cuDNN is told it again with every call.
    fresh = torch._cudnn_init_dropout_state(0.5, True, seed, dtype=torch.uint8, device=found.device)
    found.copy_(fresh)


def held_dropout() -> Tensor | None:
    """Return the generator's memory on the current device; None if nobody seeded it, or there is no device."""
    return _held.get(torch.cuda.current_device()) if _held else None


class _Arguments(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the generator that the operation of recurrent layers is called with."""

    generator: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the arguments, then do what was asked."""
        if func is torch.ops.aten._cudnn_rnn.default:
            self.generator = args[-1]
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def _find(device: torch.device) -> Tensor | None:
    """Return the memory of the generator, which torch makes at its first use; others are left as they were.

    None if torch runs recurrent layers in another way.
    """
    generators = torch.get_rng_state(), torch.cuda.get_rng_state(device)
    try:
        layer = nn.LSTM(1, 1, num_layers=2, dropout=0.5, device=device)
        arguments = _Arguments()  # type: ignore[no-untyped-call]
        with arguments, torch.autocast("cuda", enabled=False):
            layer(torch.zeros(1, 1, 1, device=device))
    finally:
        torch.set_rng_state(generators[0])
        torch.cuda.set_rng_state(generators[1], device)
    found: Tensor | None = arguments.generator
    return found
