"""Draws from Gaussian distributions, for autoencoders that have them inside."""

import torch
from torch import Tensor

from treadle.recsys.models.loss import at_least_float32


def draw_gaussian(mean: Tensor, logvar: Tensor) -> Tensor:
    """Return a draw that gradients flow through, in float32 at least.

    Kingma and Welling, "Auto-Encoding Variational Bayes", 2014. The noise is drawn in full precision, so that mixed
    precision rounds a training and does not make another one of it.

    >>> draw_gaussian(torch.ones(2), torch.full((2,), -torch.inf)).tolist()
    [1.0, 1.0]
    """
    deviation = (0.5 * at_least_float32(logvar)).exp()
    return at_least_float32(mean) + torch.randn_like(deviation) * deviation
