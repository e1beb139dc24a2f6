"""The sums that ranking metrics are made of: on the device, and of any parts of the users."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from treadle.errors import DataError, NonFiniteError
from treadle.parallel import Processes
from treadle.recsys.evaluation.breakdown import (
    Groups,
    GroupTotals,
    ItemBreakdown,
    Means,
    RankedBlock,
    UserBreakdown,
    measure_values,
)
from treadle.recsys.evaluation.inputs import NO_ITEM, OrderedPairs
from treadle.recsys.evaluation.metric_classes import ClassMetric, make_struct
from treadle.recsys.evaluation.plan import Measure, MetricPlan
from treadle.recsys.evaluation.result import EvaluationResult, joined

# Rankings that are kept as they are, for metrics that are classes and look at all of them together


class CollectedRankings:
    """The lists of all users, by RecBole's names for them, until metrics are calculated from them.

    Args:
        plan: The metrics; those that are classes say what they need.
    """

    def __init__(self, plan: MetricPlan) -> None:
        self._plan, self._length = plan, max(plan.topk, default=0)
        measures = plan.of_kind("collected")
        self._metrics = list(dict.fromkeys(one.metric for one in measures))
        wanted = {need for one in self._metrics for need in one.needs}
        self._parts: dict[str, list[Tensor]] = {need: [] for need in sorted(wanted) if need.startswith("rec.")}

    def add(self, block: RankedBlock) -> None:
        """Take in the users of one block."""
        ranking = block.ranking
        for need, parts in self._parts.items():
            if need == "rec.topk":
                hits = ranking.hits[:, : self._length].int()
                parts.append(torch.cat([hits, ranking.positives.unsqueeze(1).int()], dim=1))
            elif need == "rec.items":
                parts.append(ranking.items[:, : self._length])
            elif block.pairs is not None:
                parts.append(mean_ranks(block.pairs))

    def merge(self, other: "CollectedRankings") -> None:
        """Take in the rankings of other users."""
        for need, parts in self._parts.items():
            parts += other._parts[need]

    def reduce(self, processes: Processes) -> None:
        """Take in the rankings of all other processes; every process has to come here."""
        for need, parts in self._parts.items():
            width = 3 if need == "rec.meanrank" else self._length + (need == "rec.topk")
            kind = torch.float64 if need == "rec.meanrank" else torch.int64
            nobody = torch.zeros(0, width, dtype=kind, device=processes.device)
            own = torch.cat([nobody, *(part.to(kind) for part in parts)])
            self._parts[need] = [processes.gather(own, padding_value=0)]

    def values(self) -> dict[str, float]:
        """Return the values of the metrics."""
        if not self._metrics:
            return {}
        struct = make_struct({need: torch.cat(parts).cpu() for need, parts in self._parts.items()}, self._plan.facts)
        found: dict[str, float] = {}
        for metric in self._metrics:
            assert isinstance(metric.function, ClassMetric)
            keys = [one.key for one in self._plan.of_kind("collected") if one.metric is metric]
            found |= metric.function.values(struct, self._plan.config, keys)
        return found


def mean_ranks(pairs: OrderedPairs) -> Tensor:
    """Return for each user the sum of the ranks of positives, the number of items and that of positives.

    Equal scores have the mean of their ranks. A positive at rank r has r - 1 items before it; those that are negatives
    are the pairs which are not in order.
    """
    positives, negatives = pairs.positives.double(), pairs.negatives.double()
    ranks = positives * (positives + 1) / 2 + positives * negatives - pairs.in_order
    return torch.stack([ranks, positives + negatives, positives], dim=1)


class RankingState:
    """Sums over users that add up: over chunks, over parts of the users, over ranks.

    Nothing is read from the device before `result`, which reads once.

    Args:
        plan: The metrics.
        device: Where the sums are.
        user_groups: Divisions of users to break the result down by.
        item_groups: Divisions of items: each group counts its own positives only.
        keep_per_user: Whether the values of single users are kept.
        split: A fingerprint of each thing that makes the split.
    """

    def __init__(
        self,
        plan: MetricPlan,
        device: torch.device | str,
        *,
        user_groups: Sequence[Groups] = (),
        item_groups: Sequence[Groups] = (),
        keep_per_user: bool = False,
        split: Mapping[str, str] | None = None,
    ) -> None:
        self._split = dict(split or {})
        self.plan, self.device = plan, torch.device(device)
        self.measures = plan.of_kind("ranking", "pairs")
        self._of_catalogue = plan.of_kind("catalogue")
        self._of_groups = plan.of_kind("user_groups", "item_groups")
        self._totals = GroupTotals(plan, next(iter(user_groups), None), next(iter(item_groups), None), self.device)
        rating = [one for one in plan.of_kind("ranking") if one.metric.rates_positives]
        self._by_user = [UserBreakdown(groups, self.measures, self.device) for groups in user_groups]
        self._by_item = [ItemBreakdown(groups, rating, self.device) for groups in item_groups]
        self._means = Means(len(self.measures), 1, self.device)
        self._collected = CollectedRankings(plan)
        self._parts: list[tuple[Tensor, Tensor]] | None = [] if keep_per_user else None
        self._counters = torch.zeros(2, dtype=torch.float64, device=self.device)
        lists = len(plan.topk) if self._of_catalogue else 0
        self._recommended = torch.zeros(lists, plan.catalogue.num_items, dtype=torch.int64, device=self.device)

    def add(self, block: RankedBlock) -> None:
        """Take in the users of one block."""
        values, weights = measure_values(self.measures, block.ranking, block.pairs)
        self._means.add(values, weights, weights.new_ones(len(block.users), 1))
        self._counters[0] += len(block.users)
        self._counters[1] += block.nan_users
        for by_user in self._by_user:
            by_user.add(block.users, values, weights)
        for by_item, positives in zip(self._by_item, block.positives_by_group, strict=True):
            by_item.add(block.ranking, positives)
        self._totals.add(block)
        self._count_recommended(block.ranking.items)
        self._collected.add(block)
        if self._parts is not None:
            self._parts.append((block.users, values))

    def merge(self, other: "RankingState") -> None:
        """Take in what another state has summed up, of other users."""
        for own, theirs in zip(self._tensors(), other._tensors(), strict=True):
            own += theirs.to(self.device)
        self._collected.merge(other._collected)
        if self._parts is not None and other._parts is not None:
            self._parts += [(users.to(self.device), values.to(self.device)) for users, values in other._parts]

    def reduce(self, processes: Processes) -> None:
        """Take in what all other processes have summed up; every process has to come here."""
        if not processes.distributed:
            return
        for tensor in self._tensors():
            if tensor.numel():
                dist.all_reduce(tensor)
        self._collected.reduce(processes)
        if self._parts is not None:
            nobody = (self._counters.new_zeros(0).long(), self._counters.new_zeros(len(self.measures), 0))
            users, values = (torch.cat(parts, dim=-1) for parts in zip(*(self._parts or [nobody]), strict=True))
            rows = processes.gather(values.T.contiguous(), padding_value=0.0)
            self._parts = [(processes.gather(users, padding_value=0), rows.T)]

    def result(self) -> EvaluationResult:
        """Return the metrics.

        Raises:
            DataError: There was no user.
            NonFiniteError: Scores of some users are nan.
        """
        breakdowns = [*self._by_user, *self._by_item]
        numbers = [self._counters, self._means.totals, *(one for each in breakdowns for one in each.tensors())]
        numbers += [self._of_whole(one) for one in self._of_catalogue]
        numbers += [self._totals.value(one) for one in self._of_groups]
        host = iter(torch.cat([one.reshape(-1).double() for one in numbers]).tolist())  # the one look at the device
        users, nan_users = int(next(host)), int(next(host))
        _check(users, nan_users)
        found = {one.key: row[0] for one, row in zip(self.measures, self._means.read(host), strict=True)}
        groups = {each.groups.name: each.read(host) for each in breakdowns}
        found |= {one.key: next(host) for one in (*self._of_catalogue, *self._of_groups)}
        found |= self._collected.values()
        return EvaluationResult(
            metrics={key: found[key] for key in self.plan.keys if key in found},
            users=users,
            groups={name: values for name, (values, _) in groups.items()},
            group_users={name: sizes for name, (_, sizes) in groups.items()},
            per_user=joined(self._parts, [one.key for one in self.measures], self._split) if self._parts else None,
            decimals=self.plan.decimals,
        )

    def _count_recommended(self, items: Tensor) -> None:
        for k, counts in zip(self.plan.topk, self._recommended, strict=False):
            shown = items[:, :k].flatten()
            counts.index_add_(0, shown.clamp(min=0), (shown != NO_ITEM).long())

    def _of_whole(self, one: Measure) -> Tensor:
        counts = self._recommended[self.plan.topk.index(one.k), self.plan.catalogue.first_item :]
        value: Tensor = one.metric.function(counts, one.k)
        return value

    def _tensors(self) -> list[Tensor]:
        """Return everything that adds up over parts of the users."""
        by_group = [tensor for each in (*self._by_user, *self._by_item) for tensor in each.tensors()]
        return [self._counters, self._means.totals, *by_group, *self._totals.tensors(), self._recommended]


def _check(users: int, nan_users: int) -> None:
    if not users:
        raise DataError("no user has anything to evaluate on; the split is empty")
    if nan_users:
        raise NonFiniteError(
            f"the scores of {nan_users} of {users} users are nan, so they have no ranking; look at the model's "
            "weights, lower the learning rate or set clip_norm"
        )
