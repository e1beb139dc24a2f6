"""Evaluation by rows whose outcome is known: clicks, ratings."""

import torch
from torch import Tensor

from treadle.errors import ConfigError, DataError, NonFiniteError
from treadle.parallel import Processes
from treadle.recsys.evaluation.inputs import LabelledRows, OrderedPairs
from treadle.recsys.evaluation.metric_classes import ClassMetric
from treadle.recsys.evaluation.metrics import ordered_pairs
from treadle.recsys.evaluation.plan import Measure, MetricPlan
from treadle.recsys.evaluation.result import EvaluationResult


class LabelledEvaluation:
    """Keeps scores and labels of rows on the device, and calculates metrics over all of them together.

    An area under a curve is not the mean of the areas of parts, so rows are kept, and brought together from all
    processes, rather than averaged.

    Args:
        plan: The metrics.
        logits: Whether a sigmoid would make the scores probabilities; `LogLoss` is then calculated from the scores as
            they are, without a probability that rounds to 0 or 1.
    """

    def __init__(self, plan: MetricPlan, *, logits: bool = False) -> None:
        self.plan, self.logits = plan, logits
        self._scores: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._users: list[Tensor] = []

    def update(self, scores: Tensor, labels: Tensor, users: Tensor | None = None) -> None:
        """Take in the rows of one batch.

        Args:
            scores: What the model says, one number a row.
            labels: What was so.
            users: Whose row it is; `GAUC` needs it.
        """
        given = [scores, labels] if users is None else [scores, labels, users]
        if any(one.numel() != scores.numel() for one in given):
            sizes = [one.numel() for one in given]
            raise DataError(f"scores, labels and users have one number a row; these have {sizes} numbers")
        if len(self._users) != (0 if users is None else len(self._scores)):
            raise DataError("either every batch of an evaluation has users, or none")
        self._scores.append(scores.detach().reshape(-1))
        self._labels.append(labels.detach().reshape(-1))
        if users is not None:
            self._users.append(users.reshape(-1))

    def merge(self, other: "LabelledEvaluation") -> None:
        """Take in the rows of another evaluation."""
        device = self._scores[0].device if self._scores else None
        for own, theirs in zip(self._lists(), other._lists(), strict=True):
            own += [one if device is None else one.to(device) for one in theirs]

    def reduce(self, processes: Processes) -> None:
        """Take in the rows of all other processes; every process has to come here."""
        if not processes.distributed:
            return
        with_users = bool(processes.reduce([float(bool(self._users))], "max")[0])
        empty = torch.empty(0, device=processes.device)
        joined = [torch.cat([*own, empty.to(own[0]) if own else empty]) for own in self._lists()]
        self._scores = [processes.gather(joined[0].double(), padding_value=0.0)]
        self._labels = [processes.gather(joined[1].double(), padding_value=0.0)]
        self._users = [processes.gather(joined[2].long(), padding_value=0)] if with_users else []

    def result(self) -> EvaluationResult:
        """Return the metrics over all rows.

        Raises:
            ConfigError: A metric ranks items, which single rows do not.
            DataError: There is no row, or the labels are not what a metric needs.
            NonFiniteError: A score is nan.
        """
        self.plan.refuse(
            ("ranking", "catalogue", "user_groups", "item_groups", "collected"),
            "evaluation by labels",
            "use full ranking or sampled negatives",
        )
        return EvaluationResult(self.values("labelled", "pairs"), decimals=self.plan.decimals)

    def values(self, *kinds: str) -> dict[str, float]:
        """Return the metrics of some kinds, by default those that need labels."""
        rows, chosen = self._rows(), kinds or ("labelled",)
        return {one.key: _value(one, rows, self.plan) for one in self.plan.measures if one.metric.kind in chosen}

    def _rows(self) -> LabelledRows:
        if not sum(len(part) for part in self._scores):
            raise DataError("there is no row to evaluate; the split is empty")
        scores, labels = torch.cat(self._scores).double(), torch.cat(self._labels).double()
        wrong = int(scores.isnan().sum())
        if wrong:
            raise NonFiniteError(
                f"{wrong} of {len(scores)} scores are nan; look at the model's weights, lower the learning rate or set "
                "clip_norm"
            )
        return LabelledRows(scores, labels, torch.cat(self._users) if self._users else None, self.logits)

    def _lists(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        return self._scores, self._labels, self._users


def _value(one: Measure, rows: LabelledRows, plan: MetricPlan) -> float:
    if one.metric.kind == "labelled":
        further = (plan.config, plan.facts) if isinstance(one.metric.function, ClassMetric) else ()
        value: Tensor = one.metric.function(rows, *further)
        if value.numel() != 1:
            raise ConfigError(f"metric {one.metric.name!r} returned {value.numel()} numbers; it has to return one")
        return float(value)
    pairs = ordered_pairs(rows)
    weighted = OrderedPairs(pairs.in_order, pairs.positives, pairs.negatives, plan.gauc_weight)
    values, weights = one.metric.function(weighted)
    there = ~values.isnan()
    if not bool(there.any()):
        raise DataError(f"{one.metric.name} needs a user with positives and negatives; there is none")
    return float((values[there] * weights[there]).sum() / weights[there].sum())
