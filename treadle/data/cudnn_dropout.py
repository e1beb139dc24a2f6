"""The generator inside cuDNN that recurrent layers draw their dropout from.

Torch keeps one for each device, out of sight, and makes it anew at the first recurrent layer after its own CUDA
generator was seeded or put into a state: from a number that it draws for that. To put back torch's generators the usual
way therefore changes the dropout that follows, and every draw after it. But the generator's memory is an argument of
the operation that all recurrent layers come down to, so that it can be got hold of.
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


def hold_dropout(device: torch.device) -> None:
    """Get hold of the generator of `device`, so that `RandomState` has it; it is made now if that is due."""
    index = torch.cuda.current_device() if device.index is None else device.index
    _hold(index)


def held_dropout() -> Tensor | None:
    """Return the generator's memory on the current device; None if nobody holds it, or there is no device."""
    return _held.get(torch.cuda.current_device()) if _held else None


def set_cuda_state(state: Tensor, dropout: Tensor | None = None, device: torch.device | None = None) -> None:
    """Put torch's CUDA generator, and with `dropout` that of cuDNN, into a state.

    Where cuDNN's is held it stays the one that it is: recorded steps go on with the same memory, and nothing is drawn.

    Args:
        state: What `torch.cuda.get_rng_state` returned.
        dropout: What was in `held_dropout`.
        device: Whose; by default the current one.
    """
    index = torch.cuda.current_device() if device is None or device.index is None else device.index
    held = _held.get(index)
    if held is None:
        torch.cuda.set_rng_state(state.cpu(), index)
        return
    # The same numbers under another name: only of a generator that is put into a state itself does torch take note.
    torch.cuda.default_generators[index].graphsafe_get_state().set_state(state.cpu())
    if dropout is not None:
        held.copy_(dropout)


class _Arguments(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the generator that the operation of recurrent layers is called with, and what was in it."""

    generator: Tensor | None = None
    memory: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the arguments, then do what was asked."""
        if func is torch.ops.aten._cudnn_rnn.default:
            self.generator, self.memory = args[-1], args[-1].clone()
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def _hold(index: int) -> None:
    """Run a recurrent layer to see the generator, which is afterwards as it was; without cuDNN there is none."""
    device = torch.device("cuda", index)
    arguments: Any = _Arguments()  # type: ignore[no-untyped-call]
    # Without drawing weights: nothing may move but what the layer of a model would have moved.
    layer = nn.LSTM(1, 1, num_layers=2, dropout=0.5, device="meta").to_empty(device=device)
    with arguments, torch.autocast("cuda", enabled=False):
        layer(torch.zeros(1, 1, 1, device=device))
    if arguments.generator is not None:
        _held[index] = arguments.generator.copy_(arguments.memory)
