"""Metrics of cases that were calculated by hand."""

import math

import pytest
import torch
from torch import Tensor

from tests.recsys.evaluation.cases import items_of
from treadle.recsys.evaluation import FullRanking, LabelledEvaluation, LabelledRows, MetricPlan, find_metric

SCORES = torch.tensor(
    [
        [9.0, 6.0, 5.0, 4.0, 3.0, 2.0],
        [9.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        [9.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    ]
)
"""The first column is padding: never recommended, though its score is the highest."""
POSITIVES = items_of([[2, 4, 5], [3], []], num_items=6)
SEEN = items_of([[3], [5], []], num_items=6)
WHAT = ("UserRecall", "ItemRecall", "ItemExposure")
COUNTS = torch.tensor([100, 4, 1, 2, 0, 3])
# The lists: user 0 gets 1 2 4 5 (0 1 1 1 as hits), user 1 gets 4 3 2 1 (0 1 0 0); user 2 has nothing to find.


def value(name: str, k: int = 3, **options: float) -> float:
    plan = MetricPlan(name, k, num_items=6, item_counts=COUNTS, **options)
    return FullRanking(plan, POSITIVES, seen=SEEN).evaluate(lambda users: SCORES[users])[plan.keys[0]]


@pytest.mark.parametrize(
    ("name", "k", "expected"),
    [
        ("Hit", 1, 0.0),
        ("Hit", 2, 1.0),
        ("MRR", 3, (1 / 2 + 1 / 2) / 2),
        ("MRR", 1, 0.0),
        ("Recall", 3, (2 / 3 + 1) / 2),
        ("Recall", 4, 1.0),
        ("Precision", 3, (2 / 3 + 1 / 3) / 2),
        ("MAP", 3, ((1 / 2 + 2 / 3) / 3 + 1 / 2) / 2),
        ("MAP", 2, ((1 / 2) / 2 + 1 / 2) / 2),
        (
            "NDCG",
            3,
            ((1 / math.log2(3) + 1 / 2) / (1 + 1 / math.log2(3) + 1 / 2) + 1 / math.log2(3)) / 2,
        ),
    ],
)
def test_a_metric_of_ranked_lists(name: str, k: int, expected: float) -> None:
    assert value(name, k) == pytest.approx(expected, rel=1e-15)


def test_fact_6_item_coverage_counts_no_padding() -> None:
    # Items 1, 2, 4 and 4, 3, 2: four of five items.
    assert value("ItemCoverage") == pytest.approx(4 / 5)


def test_fact_6_average_popularity_is_the_mean_count_of_what_is_recommended() -> None:
    assert value("AveragePopularity") == pytest.approx(((4 + 1 + 0) / 3 + (0 + 2 + 1) / 3) / 2)


def test_fact_6_gini_index_is_over_all_items_but_padding() -> None:
    # Recommended 0, 1, 1, 2, 2 times, in rising order: weights -4, -2, 0, 2, 4 over 5 * 6.
    assert value("GiniIndex") == pytest.approx((-2 * 1 + 0 * 1 + 2 * 2 + 4 * 2) / (5 * 6))


def test_fact_6_tail_percentage_is_the_share_of_rare_items() -> None:
    # Two fifths of five items are two: 4, never used, and 2, used once.
    assert value("TailPercentage", tail_ratio=0.4) == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert value("TailPercentage", tail_ratio=0.1) == pytest.approx((1 / 3 + 1 / 3) / 2)
    assert value("TailPercentage", tail_ratio=2.0) == pytest.approx((2 / 3 + 3 / 3) / 2)


def test_shannon_entropy_is_not_divided_by_the_number_of_items() -> None:
    shares = [2 / 6, 2 / 6, 1 / 6, 1 / 6]
    assert value("ShannonEntropy") == pytest.approx(-sum(share * math.log(share) for share in shares))


def test_gauc_weighs_by_impressions_or_by_positives() -> None:
    # User 0: of 3 pairs none is in order; user 1: positive 3 is above 2 of 3 negatives. Impressions are 4 and 4.
    assert value("GAUC") == pytest.approx((4 * 0 + 4 * 2 / 3) / 8)
    plan = MetricPlan("GAUC", num_items=6, gauc_weight="positives")
    found = FullRanking(plan, POSITIVES, seen=SEEN).evaluate(lambda users: SCORES[users])
    assert found["gauc"] == pytest.approx((3 * 0 + 1 * 2 / 3) / 4)


def rows(scores: list[float], labels: list[float], **options: bool) -> LabelledEvaluation:
    evaluation = LabelledEvaluation(MetricPlan(["AUC", "LogLoss", "MAE", "RMSE"]), **options)
    evaluation.update(torch.tensor(scores, dtype=torch.float64), torch.tensor(labels))
    return evaluation


def test_metrics_of_labels() -> None:
    # Pairs of a positive and a negative: .8 > .6, .8 > .3, .3 < .6, .3 = .3.
    found = rows([0.8, 0.3, 0.6, 0.3], [1.0, 1.0, 0.0, 0.0]).result().metrics
    assert found["auc"] == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert found["logloss"] == pytest.approx(-(math.log(0.8) + math.log(0.3) + math.log(0.4) + math.log(0.7)) / 4)
    assert found["mae"] == pytest.approx((0.2 + 0.7 + 0.6 + 0.3) / 4)
    assert found["rmse"] == pytest.approx(math.sqrt((0.04 + 0.49 + 0.36 + 0.09) / 4))


def test_log_loss_of_logits_needs_no_sigmoid_and_loses_nothing_to_it() -> None:
    found = rows([100.0, -100.0, 2.0], [0.0, 1.0, 1.0], logits=True).result()
    assert found["LogLoss"] == pytest.approx((100 + 100 + math.log1p(math.exp(-2.0))) / 3, rel=1e-12)


def test_log_loss_of_certain_probabilities_is_finite() -> None:
    found = rows([1.0, 0.0, 0.5], [1.0, 0.0, 1.0]).result()
    assert found["LogLoss"] == pytest.approx(math.log(2) / 3, abs=1e-12)


def test_auc_and_log_loss_equal_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 50, (2000,), generator=generator).double() / 50 * 0.98 + 0.01
    labels = (torch.rand(2000, generator=generator, dtype=torch.float64) < scores).double()
    found = rows(scores.tolist(), labels.tolist()).result()
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(labels, scores), rel=1e-12)
    assert found["logloss"] == pytest.approx(metrics.log_loss(labels, scores), rel=1e-12)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(labels, scores), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "smaller"),
    [
        *((name, False) for name in ("Hit", "MRR", "Recall", "Precision", "MAP", "NDCG", "GAUC", "AUC")),
        *((name, True) for name in ("LogLoss", "MAE", "RMSE", "AveragePopularity", "GiniIndex")),
        *((name, False) for name in ("ItemCoverage", "ShannonEntropy", "TailPercentage")),
        *((name, False) for name in ("FirstStageRecall", "GradedNDCG", "UserCoverage", "IntraListDiversity")),
        *((name, False) for name in ("Novelty", "Serendipity")),
        *((name, True) for name in ("PopularityLift", "Miscalibration")),
        *((f"{what}{how}", how == "Gap") for what in WHAT for how in ("Gap", "Ratio")),
    ],
)
def test_each_metric_knows_which_way_is_better(name: str, smaller: bool) -> None:
    assert find_metric(name.upper()).smaller is smaller


def test_metrics_of_labels_do_not_depend_on_the_order_of_rows() -> None:
    scores, labels = torch.tensor([0.2, 0.9, 0.4]), torch.tensor([0.0, 1.0, 1.0])
    auc = find_metric("AUC").function
    turned: Tensor = auc(LabelledRows(scores.flip(0).double(), labels.flip(0).double()))
    assert float(turned) == float(auc(LabelledRows(scores.double(), labels.double()))) == 1.0
