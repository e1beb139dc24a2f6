"""Negatives that are all equally likely."""

import torch
from torch import Tensor

from treadle.recsys.sampling.counter_random import random_below
from treadle.recsys.sampling.sampler import NegativeSampler
from treadle.recsys.sampling.user_items import UserItems


class UniformNegatives(NegativeSampler):
    """Draws every item that the user has not seen with the same probability.

    The r-th unseen item is r plus the number of seen items before it. Of a user's seen items s0 < s1 < ..., those
    before it are the ones with s_j - j <= r: these differences are sorted, so one binary search counts them.

    >>> seen = UserItems(torch.tensor([0, 0]), torch.tensor([1, 3]), num_users=2, num_items=5)
    >>> sorted(set(UniformNegatives(seen).sample(torch.tensor([0]), 50, seed=7).flatten().tolist()))
    [2, 4]
    """

    def __init__(self, seen: UserItems, *, users: Tensor | None = None) -> None:
        self.seen = seen
        self._available = seen.catalogue_size - seen.counts
        self._refuse_users_without_negatives(self._available, users)
        # One more than the largest rank, so that the ranks of one user never reach into those of the next.
        self._stride = seen.catalogue_size + 1
        before = torch.arange(len(seen), device=seen.device) - seen.offsets[seen.users]
        self._unseen_before = seen.users * self._stride + (seen.items - seen.first_item - before)

    def draw(self, users: Tensor, bits: Tensor) -> Tensor:
        """Return the unseen item that each random number stands for."""
        rank = random_below(bits, self._available[users])
        places = torch.searchsorted(self._unseen_before, (users * self._stride + rank).contiguous(), right=True)
        return rank.add_(places).sub_(self.seen.offsets[users]).add_(self.seen.first_item)

    def weights(self) -> Tensor:
        """Return 1 for every item."""
        weights = torch.ones(self.seen.num_items, dtype=torch.int64, device=self.seen.device)
        weights[: self.seen.first_item] = 0
        return weights
