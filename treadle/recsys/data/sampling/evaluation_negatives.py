"""Negatives to rank against in an evaluation: drawn once for a split, and never again."""

import re
from typing import NamedTuple

import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError
from treadle.recsys.data.sampling.counter_random import random_bits, random_unit, row_counters
from treadle.recsys.data.sampling.negative_samplers import NegativeSampler
from treadle.recsys.data.sampling.user_items import UserItems, is_member

ROUNDS = 8
"""How often repeated draws are drawn anew before the rest is chosen from all items that are left."""
DENSE_NUMBERS = 2**22
"""How many random numbers are held at a time for those who are left."""


class EvaluationMode(NamedTuple):
    """How an evaluation ranks: `full`, `labeled`, or `uniform` and `popularity` with so many negatives a positive."""

    kind: str
    negatives: int = 0

    @classmethod
    def parse(cls, text: str) -> "EvaluationMode":
        """Return the mode that RecBole's text stands for.

        Raises:
            ConfigError: The text is none of `full`, `labeled`, `uniN` and `popN`.

        >>> EvaluationMode.parse("uni100")
        EvaluationMode(kind='uniform', negatives=100)
        """
        if text in ("full", "labeled"):
            return cls(text)
        found = re.fullmatch(r"(uni|pop)([1-9]\d*)", text)
        if found is None:
            raise ConfigError(
                f"evaluation mode {text!r}: choose 'full', 'labeled', 'uniN' or 'popN' with the number of negatives "
                "for each positive, such as 'uni100'"
            )
        return cls({"uni": "uniform", "pop": "popularity"}[found[1]], int(found[2]))


def evaluation_negatives(
    sampler: NegativeSampler, positives: UserItems, per_positive: int, *, seed: int, users: Tensor | None = None
) -> UserItems:
    """Return the negatives that each user's positives are ranked among: `per_positive` for each, no two alike.

    A user's negatives depend on the seed, the user, and the user's own items: not on training, on the other users or on
    how users are divided among ranks. Where a user has fewer unseen items than asked for, all of them are taken.

    Args:
        sampler: Draws them; made with what was seen up to and with this phase (`seen_by_phase`).
        positives: What is ranked; a user with p positives gets `p * per_positive` negatives.
        per_positive: The N of `uniN` and `popN`.
        seed: Which negatives; one number for a split.
        users: For whom; by default for everybody who has positives.
    """
    if per_positive < 1:
        raise ConfigError(f"per_positive={per_positive}: rank each positive among at least one negative")
    chosen = positives.counts.nonzero().flatten() if users is None else torch.unique(users)
    wanted = torch.minimum(positives.counts[chosen] * per_positive, _drawable(sampler)[chosen])
    keys = _distinct_keys(sampler, chosen, wanted, seed)
    return UserItems(
        torch.div(keys, positives.num_items, rounding_mode="floor"),
        keys % positives.num_items,
        num_users=positives.num_users,
        num_items=positives.num_items,
        first_item=positives.first_item,
    )


def _drawable(sampler: NegativeSampler) -> Tensor:
    """Return how many different items can be drawn for each user."""
    possible = (sampler.weights() > 0).long()
    seen = sampler.seen
    running = torch.cat([possible.new_zeros(1), possible[seen.items].cumsum(0)])
    return possible.sum() - (running[seen.offsets[1:]] - running[seen.offsets[:-1]])


def _distinct_keys(sampler: NegativeSampler, users: Tensor, wanted: Tensor, seed: int) -> Tensor:
    """Return sorted keys of the first `wanted` different items that an endless series of draws gives each user."""
    num_items = sampler.seen.num_items
    slots = torch.repeat_interleave(users, wanted)
    columns = torch.arange(len(slots), device=users.device)
    columns -= torch.repeat_interleave(wanted.cumsum(0) - wanted, wanted)
    kept = slots.new_empty(0)
    for attempt in range(ROUNDS):
        bits = random_bits(fold_seed(seed, "evaluation", attempt), row_counters(slots, columns))
        keys = slots * num_items + sampler.draw(slots, bits)
        new = ~is_member(kept, keys) & _first_of_its_kind(keys)
        kept = torch.cat([kept, keys[new]]).sort().values
        slots, columns = slots[~new], columns[~new]
        if not len(slots):
            return kept
    return torch.cat([kept, _rest(sampler, slots, kept, seed)]).sort().values


def _first_of_its_kind(keys: Tensor) -> Tensor:
    """Return whether a key is the first one of its value."""
    ordered, places = keys.sort(stable=True)
    first = torch.ones_like(keys, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return torch.empty_like(first).scatter_(0, places, first)


def _rest(sampler: NegativeSampler, slots: Tensor, kept: Tensor, seed: int) -> Tensor:
    """Return the keys of one more item for each of `slots`, from what their users have neither seen nor drawn.

    An item's waiting time is exponential with its weight as the rate; the items that come first are what further draws
    would find (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).
    """
    users, wanted = torch.unique(slots, return_counts=True)
    found = []
    for block, missing in zip(*(part.split(_rows_at_once(sampler)) for part in (users, wanted)), strict=True):
        waiting = _waiting_times(sampler, block, kept, seed)
        ranks = torch.arange(waiting.shape[1], device=block.device)
        chosen = waiting.argsort(dim=1)[ranks < missing.unsqueeze(1)]
        found.append(torch.repeat_interleave(block, missing) * sampler.seen.num_items + chosen)
    return torch.cat(found)


def _rows_at_once(sampler: NegativeSampler) -> int:
    return max(1, DENSE_NUMBERS // sampler.seen.num_items)


def _waiting_times(sampler: NegativeSampler, users: Tensor, kept: Tensor, seed: int) -> Tensor:
    seen, weights = sampler.seen, sampler.weights()
    items = torch.arange(seen.num_items, device=users.device)
    bits = random_bits(fold_seed(seed, "evaluation", "rest"), row_counters(users.unsqueeze(1), items))
    waiting = -random_unit(bits).log_() / weights
    drawn = is_member(kept, users.unsqueeze(1) * seen.num_items + items)
    waiting[drawn | seen.contains(users.unsqueeze(1), items) | (weights == 0)] = torch.inf
    return waiting
