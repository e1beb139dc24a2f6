"""Negatives that are the likelier the more often an item was used in training."""

import torch
from torch import Tensor

from treadle.errors import ConfigError, DataError
from treadle.recsys.sampling.counter_random import random_below
from treadle.recsys.sampling.sampler import NegativeSampler
from treadle.recsys.sampling.user_items import UserItems

LARGEST_KEY = 2**62
LARGEST_TOTAL = 2**40
"""To how much the weights are scaled where they are no counts: fine enough for a relative error below 1e-6 of an item
that is drawn once in a million times."""


class PopularityNegatives(NegativeSampler):
    """Draws unseen items in proportion to `(count + smoothing) ** alpha`.

    Weights are integers, so that every device draws the same; with `alpha=1` they are the counts themselves. Laid end
    to end the weights make a line; those of the user's seen items are taken out of it, and a point on what is left is
    found by two binary searches.

    Args:
        seen: What a user's negatives may not be.
        counts: How often each item was used in training: in training alone, or the test leaks into the sampler.
        alpha: 1 is popularity itself, 0.75 that of word2vec, 0 uniform over the items with a count.
        smoothing: Added to each count; with 0, items that training does not have are never drawn.
        users: Whom negatives will be drawn for; by default anybody.

    Raises:
        ConfigError: `counts`, `alpha` or `smoothing` cannot be meant.
        DataError: A user has seen every item that could be drawn.
    """

    remedy = (
        "leave them out, set smoothing=1 so that items without a count are drawn too, or name those that will be asked "
        "for with users="
    )

    def __init__(
        self,
        seen: UserItems,
        counts: Tensor,
        *,
        alpha: float = 1.0,
        smoothing: float = 0.0,
        users: Tensor | None = None,
    ) -> None:
        self.seen = seen
        _check(seen, counts, alpha, smoothing)
        self._weights = _integer_weights(counts.to(seen.device), seen, alpha, smoothing)
        line = self._weights.cumsum(0)
        self._line, total = line, line[-1]
        seen_weights = self._weights[seen.items]
        self._seen_line = torch.cat([seen_weights.new_zeros(1), seen_weights.cumsum(0)])
        taken = self._seen_line[seen.offsets[1:]] - self._seen_line[seen.offsets[:-1]]
        self._available = total - taken
        self._refuse_users_without_negatives(self._available, users)
        self._stride = int(total) + 1
        taken_before = self._seen_line[:-1] - self._seen_line[seen.offsets[seen.users]]
        start = line[seen.items] - seen_weights
        self._left_before = seen.users * self._stride + (start - taken_before)

    def draw(self, users: Tensor, bits: Tensor) -> Tensor:
        """Return the unseen item that each random number stands for."""
        point = random_below(bits, self._available[users])
        places = torch.searchsorted(self._left_before, (users * self._stride + point).contiguous(), right=True)
        point += self._seen_line[places] - self._seen_line[self.seen.offsets[users]]
        return torch.searchsorted(self._line, point, right=True)

    def weights(self) -> Tensor:
        """Return the integer weight of each item."""
        return self._weights


def _check(seen: UserItems, counts: Tensor, alpha: float, smoothing: float) -> None:
    if counts.shape != (seen.num_items,):
        raise ConfigError(f"counts has the shape {tuple(counts.shape)}; give one for each of {seen.num_items} item ids")
    if counts.dtype.is_floating_point or bool((counts < 0).any()):
        raise ConfigError("counts of items are integers, none of them below 0")
    if not (0 <= alpha < float("inf") and 0 <= smoothing < float("inf")):
        raise ConfigError(f"alpha={alpha}, smoothing={smoothing}: neither may be negative or infinite")


def _integer_weights(counts: Tensor, seen: UserItems, alpha: float, smoothing: float) -> Tensor:
    counts = counts.long().clone()
    counts[: seen.first_item] = 0
    if alpha == 1.0 and smoothing == 0.0:
        weights = counts
    else:
        # On the host, for powers are not the same to the last bit on every device.
        raw = (counts.cpu().double() + smoothing).pow(alpha)
        raw[(counts.cpu() == 0) & (smoothing == 0.0)] = 0.0
        raw[: seen.first_item] = 0.0
        scale = min(LARGEST_TOTAL, LARGEST_KEY // max(seen.num_users, 1)) / max(float(raw.sum()), 1e-300) / 2
        weights = torch.where(raw > 0, (raw * scale).round().clamp(min=1), 0.0).long().to(counts.device)
    if not bool(weights.any()):
        raise DataError("no item has a count: there is nothing that popularity could draw; set smoothing=1")
    total = float(weights.double().sum())
    if total * max(seen.num_users, 1) > LARGEST_KEY:
        raise DataError(f"counts add up to {total:.4g}, too much for {seen.num_users} users; scale them down")
    return weights
