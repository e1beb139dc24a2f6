"""The state of every generator that a training process draws from."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

# The generator inside cuDNN that recurrent layers draw their dropout from


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


class RandomState:
    """Python's, NumPy's, torch's, the accelerators' and cuDNN's generators, as one thing to save and restore.

    Args:
        generators: Further torch generators to keep with them.
        cuda: Whether the accelerator's generator is included; workers must not touch it.
    """

    def __init__(self, *generators: torch.Generator | None, cuda: bool = True) -> None:
        self._generators = [generator for generator in generators if generator is not None]
        self._cuda = cuda

    def state_dict(self) -> dict[str, Any]:
        """Return all states; tensors are copies."""
        kind, keys, position, has_gauss, cached = np.random.get_state()
        state: dict[str, Any] = {
            "python": random.getstate(),
            "numpy": {
                "kind": kind,
                "keys": torch.from_numpy(np.array(keys, dtype=np.uint32).view(np.int32)),
                "position": int(position),
                "has_gauss": int(has_gauss),
                "cached": float(cached),
            },
            "torch": torch.get_rng_state(),
            "own": [generator.get_state() for generator in self._generators],
        }
        if self._cuda and torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state()
            dropout = held_dropout()
            if dropout is not None:
                state["cudnn_dropout"] = dropout.clone()
        if self._cuda and torch.backends.mps.is_available():
            state["mps"] = torch.mps.get_rng_state()
        return state

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put every generator back after the block, however it ends."""
        state = self.state_dict()
        try:
            yield
        finally:
            self.load_state_dict(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put every generator into its state."""
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        numpy = state["numpy"]
        keys = numpy["keys"].numpy().astype(np.uint32)
        np.random.set_state((numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached"]))
        torch.set_rng_state(state["torch"].cpu())
        for generator, own in zip(self._generators, state["own"], strict=True):
            generator.set_state(own.cpu())
        if "cuda" in state and torch.cuda.is_available():
            set_cuda_state(state["cuda"], state.get("cudnn_dropout"))
        if "mps" in state and torch.backends.mps.is_available():
            torch.mps.set_rng_state(state["mps"].cpu())


class OwnGenerators:
    """Generators of your own: inside a block the global ones are these, and go on where the last block left off.

    Copying the states out and in, as `RandomState` does, would take a half of a millisecond for each block: NumPy's
    generator is exchanged as a whole instead.

    Args:
        seed: What they are seeded with.
    """

    def __init__(self, seed: int) -> None:
        self._python, self._torch = random.getstate(), torch.get_rng_state()
        self._numpy: Any = np.random.MT19937()
        with self:
            random.seed(seed)
            np.random.seed(seed)
            torch.default_generator.manual_seed(seed)

    def __enter__(self) -> None:
        self._exchange()

    def __exit__(self, *exception: object) -> None:
        self._exchange()

    def _exchange(self) -> None:
        generators: Any = np.random
        others = random.getstate(), torch.get_rng_state(), generators.get_bit_generator()
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        generators.set_bit_generator(self._numpy)
        self._python, self._torch, self._numpy = others
