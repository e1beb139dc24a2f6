"""The state of every generator that a training process draws from."""

import random
from typing import Any

import numpy as np
import torch


class RandomState:
    """Python's, NumPy's, torch's and the accelerators' generators, as one thing to save and restore.

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
            torch.cuda.set_rng_state(state["cuda"].cpu())
