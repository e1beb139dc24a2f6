"""A program that evaluates on as many processes as `torchrun` starts, and writes what each of them found."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treadle.parallel import Processes
from treadle.recsys.data.sampling import UniformNegatives, UserItems, evaluation_negatives
from treadle.recsys.enums import EvaluatorType
from treadle.recsys.evaluation import FullRanking, LabelledEvaluation, MetricPlan, SampledRanking, groups_by_count
from treadle.recsys.evaluation.metric_classes import AbstractMetric, DataStruct, TopkMetric

USERS, ITEMS = 37, 60
RANKING = ["Recall", "NDCG", "MAP", "GAUC", "AveragePopularity", "TailPercentage"]
CLASSES = ["SeveralHits", "SeveralRanks"]
SPREAD = ["ItemCoverage", "GiniIndex", "ShannonEntropy"]
BEYOND = [
    *("GradedNDCG", "IntraListDiversity", "PopularityLift", "Miscalibration", "FirstStageRecall"),
    *("UserRecallGap", "UserRecallRatio", "ItemRecallGap", "ItemExposureRatio"),
]


class SeveralHits(TopkMetric):
    """Hits and the items that were hit upon, from the lists of all users together."""

    metric_need = ("rec.topk", "rec.items")

    def calculate_metric(self, dataobject: DataStruct) -> dict[str, float]:
        hits, positives = self.used_info(dataobject)
        items = dataobject.get("rec.items").numpy()
        assert items.shape == hits.shape
        return self.topk_result("severalhits", (hits * items).cumsum(axis=1) / positives[:, None])


class SeveralRanks(AbstractMetric):
    """The mean rank of positives."""

    metric_type = EvaluatorType.RANKING
    metric_need = ("rec.meanrank",)

    def calculate_metric(self, dataobject: DataStruct) -> dict[str, float]:
        ranks, _, positives = dataobject.get("rec.meanrank").T
        return {"severalranks": float((ranks / positives).mean())}


def settings(*topk: int) -> dict[str, Any]:
    return {"metric_decimal_place": 9, "topk": topk}


def random_items(number: int, seed: int) -> UserItems:
    generator = torch.Generator().manual_seed(seed)
    users, items = (torch.randint(low, high, (number,), generator=generator) for low, high in ((0, USERS), (1, ITEMS)))
    return UserItems(users, items, num_users=USERS, num_items=ITEMS)


def evaluate(processes: Processes | None) -> dict[str, Any]:
    """Return the results of every kind of evaluation, with the share of each process taken from `processes`."""
    seen, positives = random_items(300, 1), random_items(90, 2)
    counts = torch.bincount(seen.items, minlength=ITEMS)
    scores = torch.randn(USERS, ITEMS, generator=torch.Generator().manual_seed(3))

    def scorer(users: Tensor) -> Tensor:
        return scores[users]

    full = FullRanking(
        MetricPlan(
            [*RANKING, *SPREAD, *CLASSES, *BEYOND],
            [3, 10],
            num_items=ITEMS,
            item_counts=counts,
            item_categories=torch.arange(ITEMS).unsqueeze(1) % torch.tensor([2, 3, 5]) == 0,
            first_stage=20,
            config=settings(3, 10),
        ),
        positives,
        history=seen,
        relevance=positives.items % 5,
        seen=seen,
        user_groups=[groups_by_count("activity", seen.counts, [8])],
        item_groups=[groups_by_count("popularity", counts, [5], first_id=1)],
        keep_per_user=True,
        chunk=5,
        processes=processes,
    ).evaluate(scorer)
    negatives = evaluation_negatives(UniformNegatives(seen | positives), positives, 5, seed=0)
    plan = MetricPlan(["Recall", "AUC", "RMSE", *SPREAD, *CLASSES], 5, num_items=ITEMS, config=settings(5))
    sampled = SampledRanking(plan, positives, negatives, processes=processes, pairs_at_once=50).evaluate(scorer)
    alone = MetricPlan(["Recall", *CLASSES], 3, num_items=ITEMS, config=settings(3))
    one_user = positives.counts.argmax().reshape(1)
    assert full.per_user is not None
    return {
        "one_user": FullRanking(alone, positives, users=one_user, keep_per_user=True, processes=processes)
        .evaluate(scorer)
        .metrics,
        "full": full.metrics,
        "groups": full.groups,
        "group_users": full.group_users,
        "users": [full.users, sampled.users],
        "per_user": {"users": full.per_user.users.tolist(), "recall@10": full.per_user["recall@10"].tolist()},
        "sampled": sampled.metrics,
        "labelled": labelled(processes).result().metrics,
    }


def labelled(processes: Processes | None) -> LabelledEvaluation:
    generator = torch.Generator().manual_seed(5)
    scores, labels = torch.rand(50, generator=generator), torch.randint(0, 2, (50,), generator=generator)
    users = torch.randint(0, 6, (50,), generator=generator)
    rows = LabelledEvaluation(MetricPlan(["AUC", "GAUC", "LogLoss", "MAE"]))
    # Shares of different sizes, and none at all for the last process of three.
    rank, size = (processes.rank, processes.size) if processes else (0, 1)
    cuts = {1: [0, 50], 2: [0, 13, 50], 3: [0, 13, 50, 50]}[size]
    share = slice(cuts[rank], cuts[rank + 1])
    if share.start < share.stop:
        rows.update(scores[share], labels[share], users[share])
    if processes is not None:
        rows.reduce(processes)
    return rows


def main() -> None:
    processes = Processes("cpu")
    folder = Path(sys.argv[1])
    (folder / f"rank_{processes.rank}.json").write_text(json.dumps(evaluate(processes)))


if __name__ == "__main__":
    main()
