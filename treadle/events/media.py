"""Images and histograms on their way to a writer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from treadle.errors import ConfigError

MEDIA_WINDOW = 64
"""How many images, and how many histograms, a storage keeps for writers to take; older ones are forgotten."""

CHANNELS = (1, 3, 4)


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A picture as (channels, height, width), still where it was made."""

    name: str
    pixels: Tensor
    iteration: int
    sequence: int

    def as_bytes(self) -> Tensor:
        """Return the pixels from 0 to 255, on the host."""
        if self.pixels.dtype is torch.uint8:
            return self.pixels.cpu()
        return (self.pixels.float().nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8).cpu()


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """How many values fell into each of many bins of equal width, still where they were counted.

    Attributes:
        name: Its name.
        counts: How many values are in each bin; those that are nan or infinite are in none.
        facts: The least and the greatest value, the sum and the sum of squares.
        iteration: When it was put.
        sequence: Its place among all that was put.
    """

    name: str
    counts: Tensor
    facts: Tensor
    iteration: int
    sequence: int


def check_image(name: str, image: Any) -> Tensor:
    """Return `image` as a tensor without its graph.

    Raises:
        ConfigError: It is no picture as (channels, height, width), or its numbers are no colours.
    """
    pixels = torch.as_tensor(image).detach()
    if pixels.dim() != 3 or pixels.shape[0] not in CHANNELS:
        raise ConfigError(
            f"the image {name!r} has the shape {tuple(pixels.shape)}; put (channels, height, width) with "
            "1, 3 or 4 channels"
        )
    if pixels.dtype is not torch.uint8 and not pixels.is_floating_point():
        raise ConfigError(f"the image {name!r} is of {pixels.dtype}; put uint8 from 0 to 255, or floats from 0 to 1")
    return pixels


def count_values(name: str, values: Any, bins: int) -> tuple[Tensor, Tensor]:
    """Return the counts in `bins` bins of equal width and (least, greatest, sum, sum of squares), on the device.

    Raises:
        ConfigError: There are no values, or no bins.
    """
    numbers = torch.as_tensor(values).detach().reshape(-1)
    numbers = numbers if numbers.dtype is torch.float64 else numbers.float()
    if not len(numbers) or bins < 1:
        raise ConfigError(f"the histogram {name!r} has {len(numbers)} values and {bins} bins; it needs one of each")
    # Everything by masks, for choosing the finite values would count them on the host.
    finite = torch.isfinite(numbers)
    least = numbers.where(finite, torch.inf).min()
    greatest = numbers.where(finite, -torch.inf).max()
    place = torch.nan_to_num((numbers - least) / (greatest - least) * bins, nan=0.0, posinf=0.0, neginf=0.0)
    counts = torch.zeros(bins, dtype=torch.long, device=numbers.device)
    counts.index_add_(0, place.long().clamp(0, bins - 1), finite.long())
    kept = numbers.where(finite, 0.0)
    return counts, torch.stack([least, greatest, kept.sum(), kept.square().sum()])
