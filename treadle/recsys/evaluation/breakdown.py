"""Weighted means of measures, over everybody or by group, as sums on the device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.evaluation.inputs import NO_ITEM, GroupRates, OrderedPairs, Ranking
from treadle.recsys.evaluation.metrics import find_metric
from treadle.recsys.evaluation.plan import Measure, MetricPlan

# Groups of users, or of items, to break a result down by


RECALL = find_metric("Recall")
NO_GROUP = -1
"""The group of an id that belongs to none, such as padding."""


@dataclass(frozen=True)
class Groups:
    """A division of users or items into groups.

    Attributes:
        name: What it divides by, such as `activity`.
        labels: What each group is called.
        of: The group of each id, as an index into `labels`; -1 for none.
    """

    name: str
    labels: tuple[str, ...]
    of: Tensor

    def to(self, device: torch.device) -> "Groups":
        """Return the groups with their tensor on `device`."""
        return Groups(self.name, self.labels, self.of.to(device))


def groups_by_count(name: str, counts: Tensor, edges: Sequence[int], *, first_id: int = 0) -> Groups:
    """Return groups by how many interactions an id has: below the first edge, from there to the next, and so on.

    Args:
        name: What to call the division, such as `activity` for users, `popularity` for items.
        counts: The number of interactions of each id, in training.
        edges: Where a new group begins, rising.
        first_id: The lowest id that belongs to a group; those below are padding.

    Raises:
        ConfigError: The edges do not rise.

    >>> groups = groups_by_count("activity", torch.tensor([0, 3, 10, 50]), [5, 20])
    >>> groups.labels, groups.of.tolist()
    (('0-4', '5-19', '20+'), [0, 0, 1, 2])
    """
    steps = list(edges)
    if not steps or steps[0] < 1 or any(low >= high for low, high in pairwise(steps)):
        raise ConfigError(f"edges={steps} of {name!r}: give rising whole numbers from 1 on")
    labels = [_span(low, high - 1) for low, high in pairwise([0, *steps])] + [f"{steps[-1]}+"]
    of = torch.searchsorted(torch.tensor(steps, device=counts.device), counts.long(), right=True)
    of[:first_id] = NO_GROUP
    return Groups(name, tuple(labels), of)


def groups_by_quantile(name: str, counts: Tensor, parts: int, *, first_id: int = 0) -> Groups:
    """Return groups of about equally many ids, from the least to the most interactions.

    Ids with the same number of interactions are in the same group, so that there can be fewer groups than asked for.

    Args:
        name: What to call the division.
        counts: The number of interactions of each id, in training.
        parts: How many groups to make.
        first_id: The lowest id that belongs to a group.
    """
    if parts < 2:
        raise ConfigError(f"parts={parts} of {name!r}: divide into at least two groups")
    ordered = counts[first_id:].sort().values.tolist()
    cuts = {ordered[len(ordered) * part // parts] for part in range(1, parts)} if ordered else set()
    edges = sorted(int(cut) for cut in cuts if cut > (ordered[0] if ordered else 0))
    if not edges:
        raise ConfigError(f"{name!r} cannot be divided: all ids have {ordered[:1] or 'no'} interactions")
    return groups_by_count(name, counts, edges, first_id=first_id)


def groups_by_value(name: str, values: Tensor, parts: int, *, first_id: int = 0) -> Groups:
    """Return groups of about equally many ids by any numbers, from the lowest to the highest; nan is in none.

    Args:
        name: What to call the division.
        values: The number of each id.
        parts: How many groups to make; equal numbers are in the same one, so that there can be fewer.
        first_id: The lowest id that belongs to a group.

    Raises:
        ConfigError: All numbers are the same.

    >>> groups = groups_by_value("price", torch.tensor([0.0, 0.5, 2.0, 8.0]), 2, first_id=1)
    >>> groups.labels, groups.of.tolist()
    (('below 2', 'from 2'), [-1, 0, 1, 1])
    """
    numbers = values.double().cpu()
    ordered = numbers[first_id:][~numbers[first_id:].isnan()].sort().values.tolist()
    cuts = {ordered[len(ordered) * part // parts] for part in range(1, parts)} if ordered else set()
    edges = sorted(cut for cut in cuts if cut > ordered[0])
    if not edges:
        raise ConfigError(f"{name!r} cannot be divided: all ids have the same number")
    labels = [f"below {edges[0]:g}", *(f"{low:g} to {high:g}" for low, high in pairwise(edges)), f"from {edges[-1]:g}"]
    of = torch.searchsorted(torch.tensor(edges, dtype=torch.float64), numbers, right=True)
    of[numbers.isnan()] = NO_GROUP
    of[:first_id] = NO_GROUP
    return Groups(name, tuple(labels), of)


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


ByLabel = dict[str, dict[str, float]]


@dataclass(frozen=True)
class RankedBlock:
    """What is known of some users after their items were ranked.

    Attributes:
        users: Who they are.
        ranking: The first items of their lists.
        pairs: Their pairs in order, where a metric needs them.
        positives_by_group: For each division of items, their positives by group, `[users, groups]`.
        nan_users: How many of them have a score that is nan.
    """

    users: Tensor
    ranking: Ranking
    pairs: OrderedPairs | None
    positives_by_group: Sequence[Tensor]
    nan_users: Tensor


class Means:
    """Means of measures, weighted, in one or several columns; a value that is nan counts in none.

    Attributes:
        totals: Sums of weighted values and of weights, `[2, measures, columns]`: they add up over parts.
    """

    def __init__(self, measures: int, columns: int, device: torch.device) -> None:
        self.totals = torch.zeros(2, measures, columns, dtype=torch.float64, device=device)

    def add(self, values: Tensor, weights: Tensor, members: Tensor) -> None:
        """Take in `values` and `weights`, `[measures, users]`, into the columns that `members`, 0 or 1, says."""
        there = ~values.isnan()
        self.totals += torch.stack([(values * weights).where(there, 0.0), weights.where(there, 0.0)]) @ members

    def read(self, host: Iterator[float]) -> list[list[float]]:
        """Return the means as rows of columns, from the numbers of `totals` on the host; nan where nobody counts."""
        _, measures, columns = self.totals.shape
        sums, weights = ([[next(host) for _ in range(columns)] for _ in range(measures)] for _ in range(2))
        pairs = (zip(*rows, strict=True) for rows in zip(sums, weights, strict=True))
        return [[value / weight if weight else float("nan") for value, weight in row] for row in pairs]


class Breakdown:
    """Means of measures, and the number of users, for each group of a division."""

    def __init__(self, groups: Groups, measures: Sequence[Measure], device: torch.device) -> None:
        self.groups, self.measures = groups.to(device), measures
        self.means = Means(len(measures), len(groups.labels), device)
        self.sizes = torch.zeros(len(groups.labels), dtype=torch.float64, device=device)

    def tensors(self) -> list[Tensor]:
        """Return what adds up over parts of the users."""
        return [self.means.totals, self.sizes]

    def read(self, host: Iterator[float]) -> tuple[ByLabel, dict[str, int]]:
        """Return the means and the number of users of each group that has any."""
        rows = self.means.read(host)
        sizes = {label: int(next(host)) for label in self.groups.labels}
        values = {
            label: {one.key: row[place] for one, row in zip(self.measures, rows, strict=True)}
            for place, label in enumerate(self.groups.labels)
            if sizes[label]
        }
        return values, {label: size for label, size in sizes.items() if size}


class UserBreakdown(Breakdown):
    """The means over the users of each group."""

    def add(self, users: Tensor, values: Tensor, weights: Tensor) -> None:
        """Take in the values of some users."""
        places = torch.arange(len(self.groups.labels), device=users.device)
        members = (self.groups.of[users].unsqueeze(1) == places).double()
        self.sizes += members.sum(dim=0)
        self.means.add(values, weights, members)


class ItemBreakdown(Breakdown):
    """The means where only the positives of a group count, over the users who have such positives."""

    def add(self, ranking: Ranking, positives: Tensor) -> None:
        """Take in the lists of some users; `positives` are theirs by group, `[users, groups]`."""
        self.sizes += (positives > 0).sum(dim=0)
        of_items = self.groups.of[ranking.items.clamp(min=0)].masked_fill(ranking.items == NO_ITEM, NO_ITEM)
        for place in range(len(self.groups.labels)):
            own = positives[:, place]
            part = Ranking(ranking.hits & (of_items == place), own, ranking.items, ranking.catalogue)
            values, weights = measure_values(self.measures, part, None)
            column = torch.zeros(1, len(self.groups.labels), dtype=torch.float64, device=own.device)
            column[:, place].fill_(1.0)
            self.means.add(values, weights, (own > 0).double().unsqueeze(1) * column)


class GroupTotals:
    """What metrics of fairness are made of: for the first division of users, and for that of items.

    What is counted of items are whole numbers, at each rank: they add up alike in any order.

    Args:
        plan: The metrics.
        users, items: The divisions; None where no metric asks for one.
        device: Where the sums are.
    """

    def __init__(self, plan: MetricPlan, users: Groups | None, items: Groups | None, device: torch.device) -> None:
        self._plan = plan
        wanted = {measure.k for measure in plan.of_kind("user_groups")}
        self._recall = [Measure(RECALL, k) for k in sorted(wanted)]
        self._users = UserBreakdown(users, self._recall, device) if users is not None and wanted else None
        self._items = items.to(device) if items is not None and plan.of_kind("item_groups") else None
        number = 0 if self._items is None else len(self._items.labels)
        # How often an item of the group is shown at each rank, and how often it is a positive; and its positives.
        self._ranks = torch.zeros(2, number, plan.longest, dtype=torch.float64, device=device)
        self._positives = torch.zeros(number, dtype=torch.float64, device=device)

    def add(self, block: RankedBlock) -> None:
        """Take in the users of one block."""
        ranking = block.ranking
        if self._users is not None:
            self._users.add(block.users, *measure_values(self._recall, ranking, None))
        if self._items is None:
            return
        of_items = self._items.of[ranking.items.clamp(min=0)].masked_fill(ranking.items == NO_ITEM, NO_GROUP)
        for place in range(len(self._items.labels)):
            inside = of_items == place
            self._ranks[:, place] += torch.stack([inside, inside & ranking.hits]).sum(dim=1)
        self._positives += block.positives_by_group[0].sum(dim=0)

    def tensors(self) -> list[Tensor]:
        """Return what adds up over parts of the users."""
        return [*([] if self._users is None else self._users.tensors()), self._ranks, self._positives]

    def value(self, one: Measure) -> Tensor:
        """Return the value of a metric of groups."""
        rates = self._of_users(one.k) if one.metric.kind == "user_groups" else self._of_items(one.k)
        found: Tensor = one.metric.function(rates, one.k)
        return found

    def _of_users(self, k: int) -> GroupRates:
        assert self._users is not None
        sums, weights = self._users.means.totals[:, [one.k for one in self._recall].index(k)]
        return GroupRates(sums / weights, torch.full_like(sums, torch.nan))

    def _of_items(self, k: int) -> GroupRates:
        assert self._items is not None
        shown, hits = self._ranks[:, :, :k]
        discounts = 1 / torch.arange(2, k + 2, dtype=torch.float64, device=shown.device).log2()
        exposure = shown @ discounts
        of = self._items.of[self._plan.catalogue.first_item :]
        sizes = torch.stack([(of == place).sum() for place in range(len(self._items.labels))]).double()
        fair = sizes / sizes.sum()
        return GroupRates(hits.sum(dim=1) / self._positives, exposure / exposure.sum() / fair)


def measure_values(measures: Sequence[Measure], ranking: Ranking, pairs: OrderedPairs | None) -> tuple[Tensor, Tensor]:
    """Return value and weight of each measure for each user, `[measures, users]`; nan is no value."""
    values, weights = [], []
    ones = torch.ones(len(ranking.positives), dtype=torch.float64, device=ranking.positives.device)
    for one in measures:
        if one.metric.kind == "pairs":
            value, weight = one.metric.function(pairs)
        else:
            found = one.metric.function(ranking, one.k)
            value, weight = found if isinstance(found, tuple) else (found, ones)
        values.append(_checked(one, value, len(ones)))
        weights.append(weight.double())
    if not values:
        return ones.new_zeros(0, len(ones)), ones.new_zeros(0, len(ones))
    return torch.stack(values), torch.stack(weights)


def _checked(one: Measure, value: Tensor, users: int) -> Tensor:
    if not isinstance(value, Tensor) or value.shape != (users,):
        got = f"the shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ConfigError(
            f"metric {one.metric.name!r} returned {got}; it has to return a value for each of {users} users"
        )
    return value.double()
