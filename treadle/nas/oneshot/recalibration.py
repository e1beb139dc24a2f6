"""Batch norms that are given the statistics of one network of a space."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def recalibrated(model: nn.Module, passes: Iterable[Any]) -> Iterator[None]:
    """Let the batch norms of a model have the statistics of some passes inside of the block, and their own after it.

    The model is in evaluation mode inside of the block.

    Args:
        model: The model.
        passes: Each item makes a pass through the model when it is asked for.
    """
    modes = [(module, module.training) for module in model.modules()]
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    buffers = [buffer for norm in norms for buffer in norm.buffers()]
    before = [buffer.clone() for buffer in buffers]
    model.eval()
    try:
        for norm in norms:
            norm.reset_running_stats()
            # Without a momentum, statistics are the mean over all passes.
            norm.momentum = None
            norm.train()
        with torch.no_grad():
            for _ in passes:
                pass
        model.eval()
        yield
    finally:
        with torch.no_grad():
            for buffer, own in zip(buffers, before, strict=True):
                buffer.copy_(own)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes:
            module.training = mode
