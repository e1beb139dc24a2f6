"""Ranking among drawn negatives, and evaluation by labels: together, and what they refuse."""

import pytest
import torch
from torch import Tensor

from tests.guards.no_sync import DEVICES, no_sync
from tests.recsys.evaluation import oracle
from tests.recsys.evaluation.cases import items_of
from treadle.errors import ConfigError, DataError, NonFiniteError
from treadle.recsys.evaluation import LabelledEvaluation, MetricPlan, SampledRanking

POSITIVES = items_of([[1], [2, 3], []], num_items=8)
NEGATIVES = items_of([[4, 5], [1, 5, 6, 7], [1]], num_items=8)
SCORES = torch.tensor(
    [
        [0.0, 0.5, 0.9, 0.9, 0.6, 0.1, 0.9, 0.9],
        [0.0, 0.8, 0.7, 0.2, 0.9, 0.2, 0.1, 0.7],
        [0.0] * 8,
    ]
)


def scorer(users: Tensor) -> Tensor:
    return SCORES[users]


def plan(*metrics: str, topk: int = 2) -> MetricPlan:
    return MetricPlan(metrics, topk, num_items=8)


def test_positives_are_ranked_among_their_own_negatives_alone() -> None:
    # User 0: 4, 1, 5; user 1: 1, 2, 7, 3, 5, 6, where 2 and 7, and 3 and 5, are equal.
    found = SampledRanking(plan("MRR", "Recall"), POSITIVES, NEGATIVES).evaluate(scorer)
    assert found.metrics == pytest.approx({"mrr@2": (1 / 2 + 1 / 2) / 2, "recall@2": (1 + 1 / 2) / 2})
    assert found.users == 2


def test_metrics_of_lists_and_of_labels_are_calculated_together() -> None:
    metrics = plan("AUC", "Recall", "LogLoss", "GAUC")
    found = SampledRanking(metrics, POSITIVES, NEGATIVES).evaluate(scorer).metrics
    rows = [(0, item) for item in (1, 4, 5)] + [(1, item) for item in (1, 2, 3, 5, 6, 7)]
    values = [float(SCORES[row]) for row in rows]
    labels = [int(row in {(0, 1), (1, 2), (1, 3)}) for row in rows]
    assert list(found) == ["auc", "recall@2", "logloss", "gauc"]
    assert found["auc"] == pytest.approx(oracle.area(values, labels))
    probability = torch.tensor([one if two else 1 - one for one, two in zip(values, labels, strict=True)])
    assert found["logloss"] == pytest.approx(float(-probability.log().mean()), rel=1e-6)
    own = [oracle.area(values[:3], labels[:3]), oracle.area(values[3:], labels[3:])]
    assert found["gauc"] == pytest.approx((3 * own[0] + 6 * own[1]) / 9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_pairs", [False, True])
def test_the_device_is_not_read_while_users_are_ranked(by_pairs: bool, device: str) -> None:
    metrics = plan("Recall", "NDCG", "GAUC", "AUC")
    scores = SCORES.to(device)
    ranking = SampledRanking(metrics, POSITIVES.to(device), NEGATIVES.to(device), pairs_at_once=4)
    with no_sync(device):
        if by_pairs:
            state, rows = ranking.accumulate(None, lambda users, items: scores[users, items])
        else:
            state, rows = ranking.accumulate(lambda users: scores[users], None)
    reference = SampledRanking(metrics, POSITIVES, NEGATIVES).evaluate(scorer)
    assert state.result().metrics | rows.values() == pytest.approx(reference.metrics, rel=1e-12)


def test_a_model_that_gives_every_item_one_score_is_not_favoured() -> None:
    positives = items_of([[5]], num_items=8)
    constant = SampledRanking(plan("Hit", topk=1), positives, items_of([[1, 2, 3]], num_items=8))
    assert constant.evaluate(lambda users: torch.zeros(len(users), 8))["hit@1"] == 0.0


def test_a_scorer_of_all_items_and_one_of_pairs_exclude_each_other() -> None:
    ranking = SampledRanking(plan("Hit"), POSITIVES, NEGATIVES)
    for options in ({}, {"scorer": scorer, "pair_scorer": lambda users, items: items}):
        with pytest.raises(ConfigError, match=r"^evaluate\(\) takes either a scorer of all items or a pair_scorer$"):
            ranking.evaluate(**options)


def test_a_scorer_of_pairs_that_returns_another_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"returned the shape \(1,\) for 9 pairs; it has to return a score for each"):
        SampledRanking(plan("Hit"), POSITIVES, NEGATIVES).evaluate(pair_scorer=lambda users, items: torch.zeros(1))


def test_a_cutoff_above_the_number_of_candidates_is_refused_before_any_work() -> None:
    with pytest.raises(ConfigError, match=r"^topk=\[7\]: 7 is more than the 6 candidates that any user has; choose"):
        SampledRanking(plan("Hit", topk=7), POSITIVES, NEGATIVES)


def test_a_user_with_fewer_candidates_than_k_has_a_shorter_list() -> None:
    metrics = MetricPlan(["AveragePopularity", "Precision"], 6, num_items=8, item_counts=torch.arange(8))
    found = SampledRanking(metrics, POSITIVES, NEGATIVES).evaluate(scorer)
    assert found["averagepopularity@6"] == pytest.approx(((1 + 4 + 5) / 3 + (1 + 2 + 3 + 5 + 6 + 7) / 6) / 2)
    assert found["precision@6"] == pytest.approx((1 / 6 + 2 / 6) / 2)


def evaluation(*metrics: str, **options: bool) -> LabelledEvaluation:
    return LabelledEvaluation(MetricPlan(metrics), **options)


def test_labels_of_parts_are_evaluated_together() -> None:
    whole, first, second = (evaluation("AUC", "GAUC", "RMSE") for _ in range(3))
    scores, labels = torch.tensor([0.1, 0.9, 0.5, 0.5, 0.2]), torch.tensor([0, 1, 1, 0, 1])
    users = torch.tensor([7, 7, 3, 3, 7])
    whole.update(scores, labels, users)
    first.update(scores[:2], labels[:2], users[:2])
    second.update(scores[2:], labels[2:], users[2:])
    first.merge(second)
    assert first.result().metrics == whole.result().metrics


@pytest.mark.parametrize(
    ("metric", "scores", "labels", "message"),
    [
        ("AUC", [0.5], [1.0], r"^AUC needs positives and negatives; there are 1 and 0; look at the labels"),
        ("AUC", [0.5], [3.5], r"^AUC needs labels 0 and 1, but a label is 3.5; set a threshold for them$"),
        ("LogLoss", [-2.0, 5.0], [0.0, 1.0], r"^LogLoss takes probabilities, but scores go from -2 to 5; pass logits="),
        ("GAUC", [0.5], [1.0], "^GAUC needs to know whose row is whose; pass users with the scores and labels$"),
        ("MAE", [], [], "^there is no row to evaluate; the split is empty$"),
    ],
)
def test_labels_that_a_metric_cannot_use_are_refused(
    metric: str, scores: list[float], labels: list[float], message: str
) -> None:
    rows = evaluation(metric)
    rows.update(torch.tensor(scores), torch.tensor(labels))
    with pytest.raises(DataError, match=message):
        rows.result()


def test_gauc_without_a_user_who_has_both_labels_is_refused() -> None:
    rows = evaluation("GAUC")
    rows.update(torch.tensor([0.1, 0.2]), torch.tensor([1.0, 0.0]), torch.tensor([0, 1]))
    with pytest.raises(DataError, match=r"^GAUC needs a user with positives and negatives; there is none$"):
        rows.result()


def test_scores_of_rows_that_are_nan_are_an_error() -> None:
    rows = evaluation("MAE")
    rows.update(torch.tensor([0.1, torch.nan]), torch.tensor([1.0, 0.0]))
    with pytest.raises(NonFiniteError, match=r"^1 of 2 scores are nan; look at the model's weights"):
        rows.result()


def test_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"^scores, labels and users have one number a row; these have \[2, 1\] numbers$"
    ):
        evaluation("MAE").update(torch.zeros(2), torch.zeros(1))


def test_users_in_some_batches_only_are_refused() -> None:
    rows = evaluation("MAE")
    rows.update(torch.zeros(1), torch.zeros(1), torch.zeros(1))
    with pytest.raises(DataError, match=r"^either every batch of an evaluation has users, or none$"):
        rows.update(torch.zeros(1), torch.zeros(1))


def test_metrics_of_lists_are_refused_for_labels() -> None:
    rows = LabelledEvaluation(MetricPlan(["Recall", "AUC"], num_items=50))
    with pytest.raises(ConfigError, match=r"^evaluation by labels cannot calculate \['Recall'\]; use full ranking"):
        rows.result()
