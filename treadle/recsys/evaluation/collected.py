"""Rankings that are kept as they are, for metrics that are classes and look at all of them together."""

import torch
from torch import Tensor

from treadle.parallel import Processes
from treadle.recsys.evaluation.breakdown import RankedBlock
from treadle.recsys.evaluation.inputs import OrderedPairs
from treadle.recsys.evaluation.metric_classes import ClassMetric, struct_of
from treadle.recsys.evaluation.plan import MetricPlan


class CollectedRankings:
    """The lists of all users, by RecBole's names for them, until metrics are calculated from them.

    Args:
        plan: The metrics; those that are classes say what they need.
    """

    def __init__(self, plan: MetricPlan) -> None:
        self._plan = plan
        measures = plan.of_kind("collected")
        self._metrics = list(dict.fromkeys(one.metric for one in measures))
        wanted = {need for one in self._metrics for need in one.needs}
        self._parts: dict[str, list[Tensor]] = {need: [] for need in sorted(wanted) if need.startswith("rec.")}

    def add(self, block: RankedBlock) -> None:
        """Take in the users of one block."""
        ranking = block.ranking
        for need, parts in self._parts.items():
            if need == "rec.topk":
                parts.append(torch.cat([ranking.hits.int(), ranking.positives.unsqueeze(1).int()], dim=1))
            elif need == "rec.items":
                parts.append(ranking.items)
            elif block.pairs is not None:
                parts.append(mean_ranks(block.pairs))

    def merge(self, other: "CollectedRankings") -> None:
        """Take in the rankings of other users."""
        for need, parts in self._parts.items():
            parts += other._parts[need]

    def reduce(self, processes: Processes) -> None:
        """Take in the rankings of all other processes; every process has to come here."""
        for need, parts in self._parts.items():
            width = 3 if need == "rec.meanrank" else self._plan.longest + (need == "rec.topk")
            kind = torch.float64 if need == "rec.meanrank" else torch.int64
            nobody = torch.zeros(0, width, dtype=kind, device=processes.device)
            own = torch.cat([nobody, *(part.to(kind) for part in parts)])
            self._parts[need] = [processes.gather(own, padding_value=0)]

    def values(self) -> dict[str, float]:
        """Return the values of the metrics."""
        if not self._metrics:
            return {}
        struct = struct_of({need: torch.cat(parts).cpu() for need, parts in self._parts.items()}, self._plan.facts)
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
