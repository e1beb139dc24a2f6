"""Negatives that are all equally likely."""

import torch
from torch import Tensor

from treadle.recsys.sampling.counter_random import random_below
from treadle.recsys.sampling.sampler import NegativeSampler
from treadle.recsys.sampling.user_items import UserItems

MANY = 10_000
"""How many items are drawn at once before it pays to have all unseen items listed."""
LARGEST_LIST = 1 << 25
"""How many unseen items, of all users together, are listed at most: 128 MiB, or half of it with few items."""


class UniformNegatives(NegativeSampler):
    """Draws every item that the user has not seen with the same probability.

    The r-th unseen item is r plus the number of seen items before it. Of a user's seen items s0 < s1 < ..., those
    before it are the ones with s_j - j <= r: these differences are sorted, so one binary search counts them. On a CPU
    that search is most of what a draw costs: where all unseen items of all users fit into memory they are listed, and
    the r-th is looked up.

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
        self._unseen: Tensor | None = None

    def draw(self, users: Tensor, bits: Tensor) -> Tensor:
        """Return the unseen item that each random number stands for."""
        # By index_select: indexing with brackets takes seven times as long on a CPU.
        flat = users.reshape(-1)
        rank = random_below(bits, self._available.index_select(0, flat).view_as(users))
        if self._may_list(rank):
            unseen = self._listed()
            places = rank.reshape(-1).add_(self._first_unseen.index_select(0, flat))
            return unseen.index_select(0, places).long().view_as(users)
        places = torch.searchsorted(self._unseen_before, (users * self._stride + rank).contiguous(), right=True)
        return rank.add_(places).sub_(self.seen.offsets[users]).add_(self.seen.first_item)

    def _may_list(self, ranks: Tensor) -> bool:
        if self._unseen is not None:
            return True
        fits = self.seen.num_users * self.seen.catalogue_size <= LARGEST_LIST
        return ranks.device.type == "cpu" and fits and ranks.numel() >= MANY

    def _listed(self) -> Tensor:
        """Return the unseen items of all users, one user after the other, in the shortest integers that hold them.

        From one unseen item to the next it is one step, and another one for each seen item between them; from a user to
        the next it is back by the whole catalogue.
        """
        if self._unseen is None:
            seen = self.seen
            self._first_unseen = self._available.cumsum(0) - self._available
            steps = torch.ones(int(self._available.sum()) + 1, dtype=_shortest(seen.num_items))
            after = self._first_unseen[seen.users] + (self._unseen_before - seen.users * self._stride)
            steps.index_add_(0, after, steps.new_ones(1).expand(len(seen)))
            back = steps.new_full((1,), -seen.catalogue_size)
            steps.index_add_(0, self._first_unseen[1:], back.expand(seen.num_users - 1))
            steps[0] += seen.first_item - 1
            self._unseen = steps.cumsum_(0)[:-1]
        return self._unseen

    def weights(self) -> Tensor:
        """Return 1 for every item."""
        weights = torch.ones(self.seen.num_items, dtype=torch.int64, device=self.seen.device)
        weights[: self.seen.first_item] = 0
        return weights


def _shortest(count: int) -> torch.dtype:
    """Return the type of integers to list the numbers below `count` in."""
    return torch.int16 if count <= torch.iinfo(torch.int16).max else torch.int32
