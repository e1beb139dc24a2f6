"""Triples of a knowledge graph by their heads: some for every entity, and hop by hop for every user."""

from typing import NamedTuple

import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.recsys.data.sampling.counter_random import random_below, random_bits, row_counters


class RippleSets(NamedTuple):
    """Triples that lead away from what a user liked, `[hops, users, size]` each."""

    heads: Tensor
    relations: Tensor
    tails: Tensor


class Neighbours:
    """The triples of a knowledge graph, to be drawn from by their heads.

    What is drawn depends on the seed and the entity or user alone. There is no loop over either: all are drawn at once.

    Args:
        heads, relations, tails: The triples.
        n_entities: How many entity ids there are.

    >>> graph = Neighbours(torch.tensor([1, 1, 2]), torch.tensor([5, 6, 5]), torch.tensor([2, 3, 3]), 4)
    >>> entities, relations = graph.sample(2, seed=0)
    >>> sorted(entities[1].tolist()), entities[2].tolist(), entities[3].tolist()
    ([2, 3], [3, 3], [0, 0])
    """

    def __init__(self, heads: Tensor, relations: Tensor, tails: Tensor, n_entities: int) -> None:
        order = heads.sort(stable=True).indices
        self.heads, self.relations, self.tails = heads[order], relations[order], tails[order]
        self.counts = torch.bincount(heads, minlength=n_entities)
        self.starts = self.counts.cumsum(0) - self.counts

    @classmethod
    def both_ways(cls, heads: Tensor, relations: Tensor, tails: Tensor, n_entities: int) -> "Neighbours":
        """Return the triples with every one of them also read backwards, by the same relation."""
        return cls(torch.cat([heads, tails]), relations.repeat(2), torch.cat([tails, heads]), n_entities)

    def sample(self, size: int, *, seed: int) -> tuple[Tensor, Tensor]:
        """Return `size` neighbours of every entity, and the relations to them, `[entities, size]` each.

        An entity with as many neighbours or more has so many different ones; one with fewer has each of them equally
        often, or once more. One without any has 0, which is padding.
        """
        places = self.starts.unsqueeze(1) + drawn_places(self.counts, size, seed=seed)
        known = (self.counts > 0).unsqueeze(1)
        return self._where(known, self.tails, places), self._where(known, self.relations, places)

    def _where(self, known: Tensor, column: Tensor, places: Tensor) -> Tensor:
        return torch.where(known, column[places.clamp(max=len(column) - 1)], 0)

    def ripple_sets(self, users: Tensor, items: Tensor, n_users: int, *, hops: int, size: int, seed: int) -> RippleSets:
        """Return for every user and hop `size` triples, drawn as `sample` draws them.

        The triples of the first hop begin with an item that the user liked, those of a further one with the tail of
        a triple of the hop before. Where there are none, a hop is the one before it; a user from whose items no triple
        begins has padding.

        Args:
            users, items: What users liked.
            n_users: How many user ids there are.
            hops: How many hops.
            size: How many triples a hop has.
            seed: Which triples.
        """
        order = users.sort(stable=True).indices
        owners, entities = users[order], items[order]
        before = RippleSets(*(torch.zeros(n_users, size, dtype=torch.int64) for _ in range(3)))
        found = []
        for hop in range(hops):
            places, known = self._led_from(owners, entities, n_users, size, fold_seed(seed, "hop", hop))
            columns = (self.heads, self.relations, self.tails)
            drawn = (column[places.clamp(max=len(column) - 1)] for column in columns)
            before = RippleSets(*(torch.where(known, new, old) for new, old in zip(drawn, before, strict=True)))
            found.append(before)
            owners = torch.arange(n_users).repeat_interleave(size)
            entities = before.tails.reshape(-1)
        return RippleSets(*(torch.stack(parts) for parts in zip(*found, strict=True)))

    def _led_from(self, owners: Tensor, entities: Tensor, n_users: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return places of triples that begin with some of a user's entities, and which users have any."""
        counts = self.counts[entities]
        ends = counts.cumsum(0)
        totals = torch.zeros(n_users, dtype=torch.int64).index_add_(0, owners, counts)
        firsts = totals.cumsum(0) - totals
        lined_up = firsts.unsqueeze(1) + drawn_places(totals, size, seed=seed)
        chosen = torch.searchsorted(ends, lined_up, right=True).clamp(max=len(ends) - 1)
        places = self.starts[entities[chosen]] + lined_up - (ends - counts)[chosen]
        return places, (totals > 0).unsqueeze(1)


def drawn_places(counts: Tensor, size: int, *, seed: int) -> Tensor:
    """Return `size` places below the count of each row, spread over all of them, `[rows, size]`.

    Of as many places or more, each draw has a stretch of its own to choose from, so that no two are alike. Fewer are
    gone through in turns. Both begin at a random place, so that all are equally likely, however long the stretches are.
    Where the count is 0, so is the place.
    """
    columns, number = torch.arange(size), counts.unsqueeze(1)
    rows = torch.arange(len(counts)).unsqueeze(1)
    bits = random_bits(seed, row_counters(rows, columns))
    begin = random_below(random_bits(seed, row_counters(rows, torch.tensor([size]))), number.clamp(min=1))
    low = torch.div(number * columns, size, rounding_mode="floor")
    high = torch.div(number * (columns + 1), size, rounding_mode="floor")
    stretched = low + random_below(bits, (high - low).clamp(min=1))
    return (begin + torch.where(number >= size, stretched, columns)) % number.clamp(min=1)
