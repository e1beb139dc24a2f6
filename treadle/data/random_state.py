"""The state of every generator that a training process draws from."""

import random
from typing import Any

import numpy as np
import torch

from treadle.data.cudnn_dropout import held_dropout, set_cuda_state


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
                "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
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
        return state

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


class OwnGenerators:
    """Generators of one's own: inside a block the global ones are these, and go on where the last block left off.

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
