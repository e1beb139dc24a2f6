"""Looking at a model while it may be in training."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from treadle.data import RandomState


@contextmanager
def looking(model: Any) -> Iterator[None]:
    """Put a model into evaluation mode; leave the modes of modules, and random generators, as they were."""
    modes = [(module, module.training) for module in model.modules()]
    random = RandomState()
    state = random.state_dict()
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if any(mode for _, mode in modes):
            # By the method, which a model may have made its own; then each module as it was.
            model.train()
        for module, mode in modes:
            module.training = mode
        random.load_state_dict(state)
