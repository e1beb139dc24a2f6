"""Samplers and methods of other people's, which draw from generators of the process: here by the place of a batch."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, DataError
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sampling.negative_samplers import (
    HardNegatives,
    NegativeSampler,
    PairScorer,
    PopularityNegatives,
    UniformNegatives,
)
from treadle.recsys.data.sampling.user_items import UserItems

# Where a loader's negatives come from


class Negatives:
    """Draws items for the rows of a batch, on the device of the batch.

    Args:
        seen: What may not be drawn, by user, or by target of a sequential model.
        field: The column of a batch that `seen` goes by: users, or the targets of a sequential model.
        distribution: "uniform" or "popularity".
        counts: How often each item is used in training.
        alpha: The power of the counts.
        users: Whom items will be drawn for.
    """

    def __init__(
        self,
        seen: UserItems,
        field: str,
        *,
        distribution: str = "uniform",
        counts: Tensor | None = None,
        alpha: float = 1.0,
        users: Tensor | None = None,
    ) -> None:
        self.seen, self.field = seen, field
        self._distribution, self._counts, self._alpha, self._users = distribution, counts, alpha, users
        self._samplers: dict[torch.device, NegativeSampler] = {}
        self.sampler(seen.device)  # whoever has nothing left to draw from is named now, and not in training

    def sampler(self, device: torch.device) -> NegativeSampler:
        """Return the sampler that lives on `device`."""
        if device not in self._samplers:
            seen = self.seen.to(device)
            if self._distribution == "popularity":
                assert self._counts is not None, "popularity goes by counts"
                made: NegativeSampler = PopularityNegatives(seen, self._counts, alpha=self._alpha, users=self._users)
            else:
                made = UniformNegatives(seen, users=self._users)
            self._samplers[device] = made
        return self._samplers[device]

    def draw(
        self, batch: Interaction, count: int, *, seed: int, places: Tensor, scorer: PairScorer | None, candidates: int
    ) -> Tensor:
        """Return `count` items for each row of a batch.

        Args:
            batch: The rows.
            count: How many items.
            seed: Which items.
            places: Where each row stands in the epoch.
            scorer: Scores candidates, of which the best is taken; None takes them as they are drawn.
            candidates: How many candidates there are for an item.
        """
        keys: Any = batch[self.field]
        sampler = self.sampler(keys.device)
        if scorer is not None:
            sampler = HardNegatives(sampler, scorer, candidates=candidates)
        return sampler.sample(keys, count, seed=seed, positions=places)


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Let Python, NumPy and torch draw by a seed inside the block; afterwards their generators are as they were.

    >>> with global_seed(1):
    ...     first = np.random.random()
    >>> with global_seed(1):
    ...     second = np.random.random()
    >>> first == second
    True
    """
    kept = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.default_generator.set_state(kept[2])


def is_custom_sampler(sampler: Any) -> bool:
    """Return whether a sampler is one of RecBole's kind, with `sample_by_user_ids`."""
    return callable(getattr(sampler, "sample_by_user_ids", None))


class CustomNegatives:
    """Draws items for the rows of a batch with a sampler of RecBole's kind.

    What it draws depends on the seed and on the places of the rows, not on what was drawn before.

    Args:
        sampler: It has `sample_by_user_ids(user_ids, item_ids, num)`.
        user: The column with users.
        item: The column with items.
    """

    def __init__(self, sampler: Any, user: str, item: str) -> None:
        self._sampler, self._user, self._item = sampler, user, item

    def draw(
        self, batch: Interaction, count: int, *, seed: int, places: Tensor, scorer: PairScorer | None, candidates: int
    ) -> Tensor:
        """Return `count` items for each row of a batch; with a scorer the best of `candidates` each."""
        number = count if scorer is None else count * candidates
        users, items = (batch[field].cpu().numpy() for field in (self._user, self._item))
        with global_seed(fold_seed(seed, "sampler", int(places[0]) if len(places) else 0)):
            reseed(self._sampler)
            drawn = self._sampler.sample_by_user_ids(users, items, number)
        table = as_table(drawn, len(users), number, self._sampler).to(places.device)
        if scorer is None:
            return table
        scores = scorer(batch[self._user], table).view(len(users), count, candidates)
        best = scores.argmax(dim=2, keepdim=True)
        return table.view(len(users), count, candidates).gather(2, best).squeeze(2)


class CustomTails:
    """Draws tails for triples with a sampler of RecBole's kind, which has `sample_by_entity_ids(heads, num)`."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def sampler(self, device: torch.device) -> "CustomTails":
        """Return itself, whatever the device."""
        return self

    def sample(self, heads: Tensor, count: int, *, seed: int, positions: Tensor) -> Tensor:
        """Return `count` tails for each head."""
        with global_seed(fold_seed(seed, "sampler", int(positions[0]) if len(positions) else 0)):
            reseed(self._sampler)
            drawn = self._sampler.sample_by_entity_ids(heads.cpu().numpy(), count)
        return as_table(drawn, len(heads), count, self._sampler).to(heads.device)


def reseed(sampler: Any) -> None:
    """Have a sampler with a generator of its own draw by the generators of the process."""
    if hasattr(sampler, "reseed"):
        sampler.reseed(int(np.random.randint(2**31)))


def as_table(drawn: Any, rows: int, count: int, sampler: Any) -> Tensor:
    """Return draws that stand as the first of every row, then the second of every row, as `[rows, count]`.

    Raises:
        DataError: There are not so many.
    """
    ids = torch.as_tensor(drawn, dtype=torch.int64).reshape(-1)
    if len(ids) != rows * count:
        raise DataError(f"{type(sampler).__name__} drew {len(ids)} ids for {rows} rows; it draws {count} for each")
    return ids.view(count, rows).T


def used_items(sampler: Any, num_users: int, num_items: int) -> UserItems:
    """Return what the users of a sampler of RecBole's kind have used: what an evaluation does not recommend.

    Raises:
        ConfigError: It has no `used_ids` of a phase.
    """
    used = getattr(sampler, "used_ids", None)
    if used is None or isinstance(used, dict):
        raise ConfigError(f"{type(sampler).__name__} knows no used_ids of a phase; call set_phase('valid') or 'test'")
    pairs = used.pairs() if hasattr(used, "pairs") else _listed(used)
    users, items = (torch.as_tensor(ids, dtype=torch.int64) for ids in pairs)
    return UserItems(users, items, num_users=num_users, num_items=num_items)


def _listed(used: Any) -> tuple[list[int], list[int]]:
    owners = [user for user, items in enumerate(used) for _ in items]
    return owners, [int(item) for items in used for item in items]


def drawn_candidates(
    sampler: Any, users: Tensor, items: Tensor, queries: Tensor, positives: UserItems, *, number: int, seed: int
) -> UserItems:
    """Draw, once for all evaluations, what positives are ranked among, with a sampler of RecBole's kind.

    Args:
        sampler: It has `sample_by_user_ids`.
        users, items: The user and the item of each positive.
        queries: Whose list each positive stands in.
        positives: The positives.
        number: How many negatives each has.
        seed: Which negatives.
    """
    with global_seed(seed):
        reseed(sampler)
        drawn = sampler.sample_by_user_ids(users.cpu().numpy(), items.cpu().numpy(), number)
    table = as_table(drawn, len(users), number, sampler)
    owners = queries.cpu().unsqueeze(1).expand(-1, number).reshape(-1)
    sizes = {"num_users": positives.num_users, "num_items": positives.num_items}
    return UserItems(owners, table.reshape(-1), **sizes)
