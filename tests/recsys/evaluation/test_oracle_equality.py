"""Every metric equals a calculation by definition, for any scores, ties, histories and chunks."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.recsys.evaluation import oracle
from tests.recsys.evaluation.cases import Situation, situations
from treadle.recsys.data.sampling import UniformNegatives, evaluation_negatives
from treadle.recsys.evaluation import FullRanking, LabelledEvaluation, MetricPlan, SampledRanking


def assert_equal(found: dict[str, float], expected: dict[str, float]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12, abs=1e-12, nan_ok=True), name


def some_cutoffs(draw: Any, most: int) -> list[int]:
    return draw(st.lists(st.integers(1, most), min_size=1, max_size=3, unique=True))


@given(situation=situations(), data=st.data())
def test_full_ranking_equals_the_oracle(situation: Situation, data: Any) -> None:
    topk = some_cutoffs(data.draw, situation.num_items - situation.first_item)
    tail_ratio = data.draw(st.sampled_from([0.1, 0.5, 1.0, 3.0]))
    plan = situation.plan(topk, tail_ratio=tail_ratio)
    positives, seen = situation.table(situation.positives), situation.table(situation.seen)
    ranking = FullRanking(plan, positives, seen=seen, chunk=data.draw(st.integers(1, 7)))
    case = situation.case(tail_ratio=tail_ratio)
    result = ranking.evaluate(situation.scorer)
    assert_equal(result.metrics, oracle.evaluate(case, topk))
    assert result.users == len(case.users)


@given(situation=situations(), data=st.data())
def test_full_ranking_in_float64_equals_the_oracle(situation: Situation, data: Any) -> None:
    topk = some_cutoffs(data.draw, situation.num_items - situation.first_item)
    positives, seen = situation.table(situation.positives), situation.table(situation.seen)
    # Differences that float32 does not see decide here.
    fine = situation.scores.double() + torch.arange(situation.num_items) * 1e-12
    exact = Situation(fine, *[getattr(situation, name) for name in list(Situation.__annotations__)[1:]])
    found = FullRanking(situation.plan(topk), positives, seen=seen).evaluate(exact.scorer)
    assert_equal(found.metrics, oracle.evaluate(exact.case(), topk))


@given(situation=situations(), data=st.data())
def test_sampled_ranking_equals_the_oracle(situation: Situation, data: Any) -> None:
    positives, seen = situation.table(situation.positives), situation.table(situation.seen)
    used = positives | seen
    wanted = (used.counts < used.catalogue_size) & (positives.counts > 0)
    users = wanted.nonzero().flatten()
    if not len(users):
        return
    sampler = UniformNegatives(used, users=users)
    drawn = evaluation_negatives(sampler, positives, data.draw(st.integers(1, 3)), seed=3, users=users)
    lists = [
        sorted({*own, *drawn.items[drawn.users == user].tolist()}) if user in users else []
        for user, own in enumerate(situation.positives)
    ]
    topk = some_cutoffs(data.draw, max(map(len, lists)))
    ranking = SampledRanking(
        situation.plan(topk), positives, drawn, users=users, pairs_at_once=data.draw(st.integers(1, 40))
    )
    case = situation.case(lists)
    case = oracle.Case(**{**vars(case), "positives": {user: case.positives[user] for user in users.tolist()}})
    expected = oracle.evaluate(case, topk)
    assert_equal(ranking.evaluate(situation.scorer).metrics, expected)
    by_pairs = ranking.evaluate(pair_scorer=lambda users, items: situation.scores[users, items])
    assert_equal(by_pairs.metrics, expected)


@given(situation=situations(), weight=st.sampled_from(["impressions", "positives"]))
def test_gauc_weighs_users_as_it_is_told(situation: Situation, weight: str) -> None:
    plan = situation.plan([1], metrics="GAUC", gauc_weight=weight)
    positives, seen = situation.table(situation.positives), situation.table(situation.seen)
    found = FullRanking(plan, positives, seen=seen).evaluate(situation.scorer)["GAUC"]
    assert found == pytest.approx(oracle.gauc(situation.case(), weight), rel=1e-12, nan_ok=True)


rows = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), st.integers(0, 1), st.integers(0, 3)), min_size=1
)


@given(rows=rows, cut=st.integers(0, 20))
def test_metrics_of_labels_equal_the_oracle(rows: list[tuple[float, int, int]], cut: int) -> None:
    scores, labels, users = (list(column) for column in zip(*rows, strict=True))
    plan = MetricPlan(["MAE", "RMSE", "LogLoss"])
    evaluation = LabelledEvaluation(plan)
    for part in (slice(None, cut), slice(cut, None)):
        evaluation.update(*(torch.tensor(column[part]) for column in (scores, labels, users)))
    clipped = [min(max(torch.tensor(score).item(), 1e-15), 1 - 1e-15) for score in scores]
    pairs = list(zip(clipped, labels, strict=True))
    expected = {
        "mae": sum(abs(torch.tensor(one).item() - two) for one, two in zip(scores, labels, strict=True)) / len(rows),
        "rmse": math.sqrt(
            sum((torch.tensor(one).item() - two) ** 2 for one, two in zip(scores, labels, strict=True)) / len(rows)
        ),
        "logloss": -sum(math.log(one) if two else math.log1p(-one) for one, two in pairs) / len(rows),
    }
    assert_equal(evaluation.result().metrics, expected)
    if len(set(labels)) == 2:
        both = LabelledEvaluation(MetricPlan("AUC"))
        both.update(torch.tensor(scores), torch.tensor(labels))
        assert both.result()["AUC"] == pytest.approx(oracle.area(scores, labels), rel=1e-12)


@given(rows=rows)
def test_gauc_of_labels_equals_the_oracle(rows: list[tuple[float, int, int]]) -> None:
    scores, labels, users = (torch.tensor(column) for column in zip(*rows, strict=True))
    total = weights = 0.0
    for user in set(users.tolist()):
        own = users == user
        one = oracle.area(scores[own].tolist(), labels[own].tolist())
        if not math.isnan(one):
            total, weights = total + one * int(own.sum()), weights + int(own.sum())
    evaluation = LabelledEvaluation(MetricPlan("GAUC"))
    evaluation.update(scores, labels, users)
    if weights:
        assert evaluation.result()["gauc"] == pytest.approx(total / weights, rel=1e-12)
