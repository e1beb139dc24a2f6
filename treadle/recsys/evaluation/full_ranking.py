"""Ranking of all items for each user, those already seen left out."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from treadle.errors import ConfigError, DataError
from treadle.parallel import Processes
from treadle.recsys.data.sampling.user_items import UserItems, is_member
from treadle.recsys.evaluation.breakdown import Groups, RankedBlock
from treadle.recsys.evaluation.inputs import NO_ITEM, Histories, OrderedPairs, Ranking
from treadle.recsys.evaluation.plan import MetricPlan
from treadle.recsys.evaluation.ranking_state import RankingState
from treadle.recsys.evaluation.result import EvaluationResult
from treadle.recsys.evaluation.scoring import (
    Scorer,
    pairs_in_order,
    top_items,
    true_fp32,
    users_at_once,
    writable_scores,
)
from treadle.runs.preemption import after_evaluated_batch

MOST_RELEVANT = 50
"""The highest grade of a positive: its gain is still exact in float64."""

# The items of a list of users, laid out so that any stretch of the list is a slice


class RowItems:
    """The items of `users`, one user after the other; where each begins is known on the host.

    Attributes:
        rows: The place in `users` of each item's user.
        items: The items, rising for each user.
        counts: How many items each user has.
    """

    def __init__(self, table: UserItems, users: Tensor) -> None:
        self.rows, self.items = table.select(users)
        self.counts = table.counts[users]
        self._num_items = table.num_items
        self.bounds: list[int] = [0, *self.counts.cumsum(0).tolist()]
        self._places = self.rows * table.num_items + self.items

    def stretch(self, start: int, stop: int) -> slice:
        """Return where the items of the users from `start` to `stop` are."""
        return slice(self.bounds[start], self.bounds[stop])

    def places(self, start: int, stop: int) -> Tensor:
        """Return where these items are in a flat matrix of the users' scores, `[stop - start, num_items]`; sorted."""
        return self._places[self.stretch(start, stop)] - start * self._num_items

    def by_group(self, groups: Groups) -> Tensor:
        """Return how many items of each group each user has, `[users, groups]`."""
        number = len(groups.labels)
        of = groups.of.to(self.items.device)[self.items]
        counts = torch.zeros(len(self.counts) * number, dtype=torch.int64, device=self.items.device)
        counts.index_add_(0, self.rows * number + of.clamp(min=0), (of >= 0).long())
        return counts.view(-1, number)


class PositiveGains:
    """What the positives of some users are worth: 2 ** relevance - 1.

    Args:
        positives: What is to be found.
        own: The positives of `users`.
        users: Who they are.
        relevance: How relevant each positive is, in the order of `positives.keys`.

    Raises:
        DataError: There is not one number for each positive, or one is negative, or too large.
    """

    def __init__(self, positives: UserItems, own: RowItems, users: Tensor, relevance: Tensor) -> None:
        if relevance.shape != positives.keys.shape:
            raise DataError(
                f"relevance has the shape {tuple(relevance.shape)}; give one for each of {len(positives)} positives"
            )
        least, most = (float(one) for one in relevance.aminmax())
        if not (least >= 0 and most <= MOST_RELEVANT):
            raise DataError(
                f"relevance goes from {least:g} to {most:g}: the gain is 2 ** relevance - 1, so give grades from 0 to "
                f"{MOST_RELEVANT}, such as ratings"
            )
        keys = users[own.rows] * positives.num_items + own.items
        grades = relevance.to(positives.device).double()[torch.searchsorted(positives.keys, keys)]
        self.values = grades.exp2() - 1
        by_value = self.values.argsort(descending=True, stable=True)
        order = by_value[own.rows[by_value].argsort(stable=True)]
        self._best, self._own = self.values[order], own
        ends = own.counts.cumsum(0)
        self._ranks = torch.arange(len(order), device=order.device) - (ends - own.counts)[own.rows]

    def best(self, start: int, stop: int, ranks: int) -> Tensor:
        """Return the highest gains of the users from `start` to `stop`, `[stop - start, ranks]`."""
        own = self._own.stretch(start, stop)
        # What does not fit goes to one more column, which is left out.
        table = self._best.new_zeros(stop - start, ranks + 1)
        table[self._own.rows[own] - start, self._ranks[own].clamp(max=ranks)] = self._best[own]
        return table[:, :ranks]


def relevance_by_key(positives: UserItems, users: Tensor, items: Tensor, values: Tensor) -> Tensor:
    """Return how relevant each positive is, in the order of `positives.keys`: the highest value of its pairs.

    Args:
        positives: What is to be found.
        users, items: The pairs, all of them positives.
        values: How relevant each pair is.
    """
    places = torch.searchsorted(positives.keys, users.long() * positives.num_items + items.long())
    nothing = torch.full(positives.keys.shape, -torch.inf, dtype=torch.float64, device=positives.device)
    return nothing.scatter_reduce(0, places, values.double(), "amax")


class RankingFacts:
    """What metrics need to know of the users of a ranking, beside where their positives stand.

    Args:
        plan: The metrics.
        positives: What is to be found.
        own: The positives of `users`.
        users: Who is ranked for.
        history: What each has in training; needed by some metrics, as `relevance` is.
        relevance: How relevant each positive is, in the order of `positives.keys`.
    """

    def __init__(
        self,
        plan: MetricPlan,
        positives: UserItems,
        own: RowItems,
        users: Tensor,
        history: UserItems | None,
        relevance: Tensor | None,
    ) -> None:
        plan.check_given(history=history, relevance=relevance)
        self._longest = plan.longest
        self._histories: RowItems | None = None
        self.gains: PositiveGains | None = None
        if history is not None and plan.requiring("history"):
            self._histories = RowItems(history.to(positives.device), users)
        if relevance is not None and plan.requiring("relevance"):
            self.gains = PositiveGains(positives, own, users, relevance)

    def histories(self, start: int, stop: int) -> Histories | None:
        """Return what the users from `start` to `stop` have in training, where a metric needs it."""
        known = self._histories
        if known is None:
            return None
        return Histories(known.items[known.stretch(start, stop)], known.counts[start:stop])

    def best_gains(self, start: int, stop: int) -> Tensor | None:
        """Return the highest gains of these users, where a metric needs them."""
        return None if self.gains is None else self.gains.best(start, stop, self._longest)


def users_to_rank(positives: UserItems, users: Tensor | None, processes: Processes | None) -> Tensor:
    """Return the users with a positive, of these the ones that this process takes: each user is one process's.

    Raises:
        DataError: No user has a positive.
    """
    there = positives.counts > 0
    chosen = there.nonzero().flatten() if users is None else torch.unique(users.to(positives.device))
    chosen = chosen[there[chosen]]
    if not len(chosen):
        raise DataError("no user has a positive to rank; the split is empty, or none of the chosen users is in it")
    return chosen if processes is None else chosen[processes.rank :: processes.size]


FOUND, HIDDEN, AMONG = "what is to be found", "what is not recommended", "what it is ranked among"
"""What makes a split, as a refusal to compare two of them names it."""


def fingerprints(wanted: bool, positives: UserItems, others: Mapping[str, UserItems]) -> dict[str, str]:
    """Return a fingerprint of each table that makes a split, on the host; nothing unless they are wanted."""
    if not wanted:
        return {}
    tables = {FOUND: positives, **others}
    return {name: blake2b(one.keys.cpu().numpy().tobytes(), digest_size=8).hexdigest() for name, one in tables.items()}


def check_groups(user_groups: Sequence[Groups], item_groups: Sequence[Groups], positives: UserItems) -> None:
    """Raise if a division does not have a group for each id, or if two have one name."""
    for groups, number, what in [
        *((one, positives.num_users, "user") for one in user_groups),
        *((one, positives.num_items, "item") for one in item_groups),
    ]:
        if groups.of.shape != (number,):
            raise DataError(
                f"groups {groups.name!r} have the shape {tuple(groups.of.shape)}; give the group of each of {number} "
                f"{what} ids"
            )
    names = [groups.name for groups in (*user_groups, *item_groups)]
    if len(set(names)) < len(names):
        raise DataError(f"groups are told apart by name, and these are called {names}; give each its own")


class FullRanking:
    """Ranks all items for each user who has a positive, and measures where the positives come.

    Users are scored in chunks that fit the memory. Padding and what a user has seen is not recommended; a positive that
    the user has seen before is, or nothing could find it. A list is shorter where a user has fewer items left than k.
    Of equal scores the lower item id comes first. Scores are compared in float32, in float64 if they are so.

    It is made once for a split: what it needs is sorted then, and each evaluation only scores and counts.

    Args:
        plan: The metrics.
        positives: What is to be found; users without any are left out. Its device is where everything happens.
        seen: What is not to be recommended; by default nothing is kept back.
        users: Whom to rank for; by default everybody who has positives.
        user_groups: Divisions of users to break the result down by.
        item_groups: Divisions of items: each group counts its own positives only.
        keep_per_user: Whether the result has the values of single users, which a significance test needs.
        memory: How many bytes scores may take; see `users_at_once`.
        chunk: How many users to score at a time, whatever the memory.
        processes: The processes of the run; each takes its share of the users.
        history: What each user has in training; metrics such as `Miscalibration` need it.
        relevance: How relevant each positive is, in the order of `positives.keys`, for `GradedNDCG`; see
            `relevance_by_key`.

    Raises:
        ConfigError: A metric needs labels, which a full ranking does not have, or something that is not given.
        DataError: No user has a positive.
    """

    def __init__(
        self,
        plan: MetricPlan,
        positives: UserItems,
        *,
        seen: UserItems | None = None,
        users: Tensor | None = None,
        user_groups: Sequence[Groups] = (),
        item_groups: Sequence[Groups] = (),
        keep_per_user: bool = False,
        memory: int | None = None,
        chunk: int | None = None,
        processes: Processes | None = None,
        history: UserItems | None = None,
        relevance: Tensor | None = None,
    ) -> None:
        plan.refuse(("labelled",), "full ranking", "rank among sampled negatives (uniN, popN), or use GAUC")
        plan.check_given(user_groups=user_groups, item_groups=item_groups)
        check_plan(plan, positives)
        check_groups(user_groups, item_groups, positives)
        if chunk is not None and chunk < 1:
            raise ConfigError(f"chunk={chunk}: score at least one user at a time")
        self.plan, self.device = plan, positives.device
        self._catalogue = plan.catalogue.to(self.device)
        self._groups = {
            "user_groups": [groups.to(self.device) for groups in user_groups],
            "item_groups": [groups.to(self.device) for groups in item_groups],
        }
        self._keep_per_user, self._memory, self._chunk, self._processes = keep_per_user, memory, chunk, processes
        self.users = users_to_rank(positives, users, processes)
        self._positives = RowItems(positives, self.users)
        nothing = positives - positives
        self._hidden = RowItems(nothing if seen is None else seen.to(self.device) - positives, self.users)
        self._by_group = [self._positives.by_group(groups) for groups in item_groups]
        self._split = fingerprints(keep_per_user, positives, {HIDDEN: nothing if seen is None else seen})
        self._facts = RankingFacts(plan, positives, self._positives, self.users, history, relevance)

    def evaluate(self, scorer: Scorer) -> EvaluationResult:
        """Return the metrics of `scorer` over the users of all processes.

        Args:
            scorer: Takes users and returns scores `[users, num_items]`, which are written to.
        """
        state = self.accumulate(scorer)
        if self._processes is not None:
            state.reduce(self._processes)
        return state.result()

    @torch.no_grad()
    def accumulate(self, scorer: Scorer) -> RankingState:
        """Return the sums over the users of this process."""
        state = RankingState(
            self.plan, self.device, keep_per_user=self._keep_per_user, split=self._split, **self._groups
        )
        with true_fp32(self.device):
            for start, stop in self._chunks():
                state.add(self._ranked(scorer, start, stop))
                after_evaluated_batch()
        return state

    def _chunks(self) -> Iterator[tuple[int, int]]:
        step = self._chunk or users_at_once(self._catalogue.num_items, self.device, self._memory)
        for start in range(0, len(self.users), step):
            yield start, min(start + step, len(self.users))

    def _ranked(self, scorer: Scorer, start: int, stop: int) -> RankedBlock:
        users, catalogue = self.users[start:stop], self._catalogue
        scores = writable_scores(scorer(users), users, catalogue.num_items)
        hide(scores, self._hidden.places(start, stop), catalogue.first_item)
        items, nan_users = first_items(scores, self.plan.longest)
        ranking = self._ranking(items, start, stop)
        by_group = [counts[start:stop] for counts in self._by_group]
        return RankedBlock(users, ranking, self._pairs(scores, start, stop), by_group, nan_users)

    def _ranking(self, items: Tensor, start: int, stop: int) -> Ranking:
        rows = torch.arange(stop - start, device=self.device).unsqueeze(1)
        own, shown = self._positives.places(start, stop), rows * self._catalogue.num_items + items
        hits = is_member(own, shown) & (items != NO_ITEM)
        gains = None
        if self._facts.gains is not None:
            values = self._facts.gains.values[self._positives.stretch(start, stop)]
            gains = values[torch.searchsorted(own, shown).clamp_(max=len(own) - 1)] * hits
        counts, best = self._positives.counts[start:stop], self._facts.best_gains(start, stop)
        return Ranking(hits, counts, items, self._catalogue, gains, best, self._facts.histories(start, stop))

    def _pairs(self, scores: Tensor, start: int, stop: int) -> OrderedPairs | None:
        if not self.plan.needs_pairs:
            return None
        hidden = self._hidden.counts[start:stop] + self._catalogue.first_item
        own, counts = self._positives.places(start, stop), self._positives.counts[start:stop]
        return pairs_in_order(scores, own, counts, hidden, weight=self.plan.gauc_weight)


def check_plan(plan: MetricPlan, positives: UserItems) -> None:
    """Raise if the metrics were planned for other items than `positives` numbers."""
    planned = (plan.catalogue.num_items, plan.catalogue.first_item)
    own = (positives.num_items, positives.first_item)
    if planned != own:
        raise ConfigError(
            f"the metrics are planned for (num_items, first_item) = {planned}, and the positives have {own}; make the "
            "plan with the numbers of the data"
        )


def hide(scores: Tensor, places: Tensor, first_item: int) -> None:
    """Give padding, and the `places` of the flat scores, a score below every other."""
    scores[:, :first_item].fill_(-torch.inf)
    scores.view(-1).index_fill_(0, places, -torch.inf)


def first_items(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best items of each row, -1 where there is none, and how many rows have a nan."""
    if not k:
        return torch.empty(len(scores), 0, dtype=torch.int64, device=scores.device), scores.isnan().any(dim=1).sum()
    items, values, nan_rows = top_items(scores, k)
    return items.masked_fill_(values == -torch.inf, NO_ITEM), nan_rows


# The best unseen items of some users, as a table


@torch.no_grad()
def recommend_items(
    scorer: Scorer, users: Tensor, k: int, *, seen: UserItems, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the k best items of each user, best first, and their scores, both `[users, k]`.

    Where a user has fewer than k unseen items the rest is -1, with the score -inf. Of equal scores the lower item id
    comes first.

    Args:
        scorer: Takes users and returns scores `[users, num_items]`, which are written to.
        users: Whom to recommend to, in any order.
        k: How many items each gets.
        seen: What is not recommended to whom; give an empty one to recommend anything.
        chunk: How many users to score at a time; by default as many as fit the memory.

    Raises:
        ConfigError: There are no k items.
    """
    if not 0 < k <= seen.catalogue_size:
        raise ConfigError(f"k={k}: recommend at least one item, and at most the {seen.catalogue_size} there are")
    hidden = RowItems(seen, users)
    step = chunk or users_at_once(seen.num_items, seen.device)
    found = []
    with true_fp32(seen.device):
        for start in range(0, len(users), step):
            some = users[start : start + step]
            scores = writable_scores(scorer(some), some, seen.num_items)
            hide(scores, hidden.places(start, start + len(some)), seen.first_item)
            items, values, _ = top_items(scores, k)
            found.append((items.masked_fill_(values == -torch.inf, NO_ITEM), values))
    if not found:
        return torch.empty(0, k, dtype=torch.int64, device=seen.device), torch.empty(0, k, device=seen.device)
    items, values = (torch.cat(parts) for parts in zip(*found, strict=True))
    return items, values
