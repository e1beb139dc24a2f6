"""What every negative sampler does: number its draws, refuse users without negatives, hand out items."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from treadle.errors import ConfigError, DataError
from treadle.recsys.data.sampling.counter_random import COLUMN_BITS, random_below, random_bits, row_counters
from treadle.recsys.data.sampling.user_items import UserItems

NAMED = 5
"""How many users an error message names before it only counts."""


class NegativeSampler(ABC):
    """Draws items that a user has not seen.

    What is drawn for a row depends on the seed, the row's position and the row's user, and on nothing else: not on
    the batch it is in, on the device, or on what was drawn before. So a run that resumes needs no replay; the negatives
    of a whole epoch can be drawn at once and sliced; and the ranks of a run, each with the positions of its own rows,
    draw what one process would.

    No draw is rejected. Among the items that a user has not seen the chosen one is found by binary search, so a user
    who has seen all items but one gets that one, at the same cost as anybody else.

    Args:
        seen: What a user's negatives may not be.
        users: Whom negatives will be drawn for; by default anybody.

    Raises:
        DataError: A user has seen every item that could be drawn.
    """

    seen: UserItems
    _spent: Tensor | None = None

    @abstractmethod
    def draw(self, users: Tensor, bits: Tensor) -> Tensor:
        """Return the item that each random number of 63 bits stands for, for the user beside it."""

    @abstractmethod
    def weights(self) -> Tensor:
        """Return how likely each item is to be drawn, in proportion; an integer for each id, 0 for padding."""

    def sample(self, users: Tensor, count: int, *, seed: int | Tensor, positions: Tensor | None = None) -> Tensor:
        """Return `count` negatives for each user, as `[len(users), count]`, on the device of the ids.

        With more negatives the first ones stay what they were. The same negative can come twice in a row.

        Args:
            users: A user for each row.
            count: How many negatives a row gets.
            seed: Which negatives; take another one for every epoch. A 0-dimensional int64 tensor can be changed
                between the replays of a captured graph.
            positions: The place of each row in the epoch; by default 0, 1, 2 and so on.
        """
        if not 0 < count < 1 << COLUMN_BITS:
            raise ConfigError(f"count={count}: draw at least one negative, and fewer than {1 << COLUMN_BITS}, a row")
        self._check_drawable(users)
        places = torch.arange(len(users), device=users.device) if positions is None else positions
        columns = torch.arange(count, device=users.device)
        bits = random_bits(seed, row_counters(places.unsqueeze(1), columns))
        return self.draw(users.unsqueeze(1).expand(-1, count), bits)

    def _refuse_users_without_negatives(self, available: Tensor, users: Tensor | None) -> None:
        """Raise if one of `users`, or anybody, has nothing available."""
        spent = available <= 0
        self._spent = spent if bool(spent.any()) else None
        if self._spent is not None:
            chosen = torch.arange(len(spent), device=spent.device) if users is None else users.to(spent.device)
            self._refuse(torch.unique(chosen[spent[chosen]]))

    def _check_drawable(self, users: Tensor) -> None:
        # Only where the builder was told that spent users would not be asked for: it costs a look at the device.
        if self._spent is not None:
            self._refuse(torch.unique(users[self._spent[users]]))

    def _refuse(self, spent: Tensor) -> None:
        if len(spent):
            more = f" and {len(spent) - NAMED} more" if len(spent) > NAMED else ""
            raise DataError(
                f"users {spent[:NAMED].tolist()}{more} have no negative: they have seen every item that "
                f"{type(self).__name__} draws; {self.remedy}"
            )

    remedy = "leave them out, or name those that will be asked for with users="


# Negatives that are all equally likely


MANY = 10_000
"""How many items are drawn at once before it pays to have all unseen items listed."""
STRETCHES = 1 << 22
"""Into about how many stretches the keys of a large catalogue are divided: a table of 16 to 32 MiB."""
LARGEST_LIST = 1 << 25
"""How many unseen items, of all users together, are listed at most: 128 MiB, or half of it with few items."""


class UniformNegatives(NegativeSampler):
    """Draws every item that the user has not seen with the same probability.

    The r-th unseen item is r plus the number of seen items before it. Of a user's seen items s0 < s1 < ..., those
    before it are the ones with s_j - j <= r: these differences are sorted, so one binary search counts them. On a CPU
    that search is most of what a draw costs: where all unseen items of all users fit into memory they are listed, and
    the r-th is looked up; in larger catalogues a table says where to search, and mostly what would be found.

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
        self._stretches: Tensor | None = None

    def draw(self, users: Tensor, bits: Tensor) -> Tensor:
        """Return the unseen item that each random number stands for."""
        # By index_select: indexing with brackets takes seven times as long on a CPU.
        flat = users.reshape(-1)
        rank = random_below(bits, self._available.index_select(0, flat).view_as(users))
        if self._may_list(rank):
            unseen = self._listed()
            places = rank.reshape(-1).add_(self._first_unseen.index_select(0, flat))
            return unseen.index_select(0, places).long().view_as(users)
        keys = (users * self._stride + rank).contiguous()
        places = self._looked_up(keys) if self._may_look_up(rank) else self._searched(keys)
        return rank.add_(places).sub_(self.seen.offsets.index_select(0, flat).view_as(users)).add_(self.seen.first_item)

    def _searched(self, keys: Tensor) -> Tensor:
        return torch.searchsorted(self._unseen_before, keys, right=True)

    def _may_look_up(self, ranks: Tensor) -> bool:
        return self._stretches is not None or (ranks.device.type == "cpu" and ranks.numel() >= MANY)

    def _looked_up(self, keys: Tensor) -> Tensor:
        """Return what a search finds, looked up in a table of where each stretch of keys begins.

        Most stretches have no seen item, and where a stretch and the next one begin at the same place nothing is left
        to be searched.
        """
        if self._stretches is None:
            self._shift = max((self.seen.num_users * self._stride // STRETCHES).bit_length(), 1)
            ends = (torch.arange((self.seen.num_users * self._stride >> self._shift) + 2) << self._shift) - 1
            # How many are below the first key of a stretch, in integers that take half the room.
            self._stretches = self._searched(ends).int()
        flat = keys.reshape(-1)
        stretch = flat >> self._shift
        first = self._stretches.index_select(0, stretch)
        rest = (self._stretches.index_select(0, stretch.add_(1)) != first).nonzero().squeeze(1)
        found = first.long()
        found[rest] = self._searched(flat.index_select(0, rest))
        return found.view_as(keys)

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


# Negatives that are the likelier the more often an item was used in training


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


# Negatives that the model itself finds hard


PairScorer = Callable[[Tensor, Tensor], Tensor]
"""Scores of pairs: takes users and items of one shape and returns scores of that shape."""


class HardNegatives(NegativeSampler):
    """Draws several candidates for each negative and keeps the one with the highest score.

    This is dynamic negative sampling (Zhang et al., "Optimizing top-n collaborative filtering via dynamic negative
    item sampling", 2013). Scores are taken without gradients and without touching the mode of the model. Of equal
    scores the first candidate stays.

    Args:
        sampler: Where candidates come from.
        scorer: Scores pairs; called with users and items, each `[rows, count * candidates]`.
        candidates: How many candidates there are for a negative.
    """

    def __init__(self, sampler: NegativeSampler, scorer: PairScorer, *, candidates: int) -> None:
        if candidates < 1:
            raise ConfigError(f"candidates={candidates}: draw at least one for each negative")
        self.seen = sampler.seen
        self._sampler, self._scorer, self._candidates = sampler, scorer, candidates

    @torch.no_grad()
    def sample(self, users: Tensor, count: int, *, seed: int | Tensor, positions: Tensor | None = None) -> Tensor:
        """Return `count` negatives for each user, each the hardest of its candidates."""
        drawn = self._sampler.sample(users, count * self._candidates, seed=seed, positions=positions)
        scores = self._scorer(users.unsqueeze(1).expand_as(drawn), drawn)
        if scores.shape != drawn.shape:
            raise ConfigError(
                f"the scorer of hard negatives returned the shape {tuple(scores.shape)} for pairs of the shape "
                f"{tuple(drawn.shape)}; it has to return a score for each"
            )
        shape = (len(users), count, self._candidates)
        hardest = _first_largest(scores.reshape(shape))
        return drawn.view(shape).gather(2, hardest.unsqueeze(2)).squeeze(2)

    def draw(self, users: Tensor, bits: Tensor) -> Tensor:
        """Return the plain candidate that each random number stands for."""
        return self._sampler.draw(users, bits)

    def weights(self) -> Tensor:
        """Return the weights of the candidates."""
        return self._sampler.weights()


def _first_largest(scores: Tensor) -> Tensor:
    """Return the first place of the largest score of each group; `argmax` may give any of them."""
    largest = scores.amax(dim=2, keepdim=True)
    places = torch.arange(scores.shape[2], device=scores.device)
    return torch.where(scores == largest, places, scores.shape[2] - 1).amin(dim=2)
