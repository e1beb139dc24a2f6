"""Tests between two runs give the numbers of an independent implementation, and the right answers."""

import math
from itertools import product

import pytest
import torch

from tests.recsys.evaluation.cases import items_of
from treadle.errors import ConfigError, DataError, UnknownMetricError
from treadle.recsys.evaluation import FullRanking, MetricPlan, PerUser, compare_runs
from treadle.recsys.evaluation.significance import (
    _holm,
    bootstrap_interval,
    incomplete_beta,
    paired_t_test,
    permutation_test,
)


def values(*columns: list[float]) -> list[PerUser]:
    return [PerUser(torch.arange(len(one)), {"ndcg@10": torch.tensor(one, dtype=torch.float64)}) for one in columns]


def noise(number: int, shift: float, seed: int) -> torch.Tensor:
    return torch.randn(number, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift


@pytest.mark.parametrize(("number", "shift"), [(2, 0.5), (3, 0.0), (10, 0.3), (100, -0.2), (5000, 0.01), (5000, 0.5)])
def test_the_t_test_is_that_of_scipy(number: int, shift: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    differences = noise(number, shift, seed=number)
    expected = stats.ttest_1samp(differences.numpy(), 0.0)
    t, p = paired_t_test(differences)
    assert t == pytest.approx(float(expected.statistic), rel=1e-12)
    assert p == pytest.approx(float(expected.pvalue), rel=1e-9)


@pytest.mark.parametrize("a", [0.5, 1.0, 7.3, 2500.0])
@pytest.mark.parametrize("b", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("x", [0.0, 1e-6, 0.2, 0.5, 0.93, 1.0])
def test_the_incomplete_beta_function_is_that_of_scipy(a: float, b: float, x: float) -> None:
    special = pytest.importorskip("scipy.special")
    assert incomplete_beta(a, b, x) == pytest.approx(float(special.betainc(a, b, x)), rel=1e-9, abs=1e-300)


def test_runs_that_do_not_differ_are_certain_to_come_by_chance() -> None:
    assert paired_t_test(torch.zeros(5)) == (0.0, 1.0)
    assert permutation_test(torch.zeros(5), 100, seed=0) == 1.0


def test_runs_that_differ_by_a_constant_do_not_come_by_chance() -> None:
    assert paired_t_test(torch.full((5,), 0.25)) == (math.inf, 0.0)
    assert paired_t_test(torch.full((5,), -0.25)) == (-math.inf, 0.0)


def test_the_permutation_test_comes_near_to_trying_all_exchanges() -> None:
    differences = torch.tensor([0.5, 0.2, -0.1, 0.4, 0.3, -0.2, 0.6, 0.1], dtype=torch.float64)
    signs = torch.tensor(list(product([-1.0, 1.0], repeat=8)), dtype=torch.float64)
    exact = float(((signs @ differences).abs() >= float(differences.sum()) - 1e-12).double().mean())
    found = permutation_test(differences, 20_000, seed=1)
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000))


def test_the_bootstrap_interval_comes_near_to_that_of_the_normal_distribution() -> None:
    differences = noise(4000, 0.1, seed=3)
    middle, spread = float(differences.mean()), float(differences.std()) / math.sqrt(4000)
    low, high = bootstrap_interval(differences, 5000, 0.95, seed=2)
    assert low == pytest.approx(middle - 1.96 * spread, abs=0.1 * spread)
    assert high == pytest.approx(middle + 1.96 * spread, abs=0.1 * spread)


def test_probabilities_are_adjusted_by_holms_procedure() -> None:
    assert _holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert _holm([0.9, 0.8]) == [1.0, 1.0]


def test_two_evaluations_are_compared_user_by_user() -> None:
    positives = items_of([[1], [2], [3], [1], [2], [3]], num_items=4)
    ranking = FullRanking(MetricPlan(["Hit", "MRR"], 2, num_items=4), positives, keep_per_user=True, chunk=4)
    good, bad = torch.tensor([0.0, 3, 2, 1]), torch.tensor([0.0, 1, 2, 3])
    first = ranking.evaluate(lambda users: bad.repeat(len(users), 1))
    second = ranking.evaluate(lambda users: torch.where(users.unsqueeze(1) < 3, good, bad))
    assert first.per_user is not None
    assert second.per_user is not None
    found = compare_runs(first.per_user, second.per_user, resamples=500)
    assert list(found) == ["hit@2", "mrr@2"]
    assert found["mrr@2"].users == 6
    assert found["mrr@2"].first == pytest.approx((0 + 0.5 + 1) * 2 / 6)
    assert found["mrr@2"].second == pytest.approx((1 + 0.5 + 0 + 0 + 0.5 + 1) / 6)
    assert found["mrr@2"].difference == pytest.approx(0.0)
    assert found["mrr@2"].t_test == pytest.approx(1.0)
    assert str(found["hit@2"]).startswith("hit@2: 0.6667 -> 0.6667 (+0.0000, between ")


def test_a_clear_difference_is_found_and_a_seed_gives_the_same_answer() -> None:
    first = noise(300, 0.0, seed=1)
    runs = values(first.tolist(), (first + 0.3 + 0.1 * noise(300, 0.0, seed=2)).tolist())
    found = compare_runs(*runs, resamples=999, seed=4)["ndcg@10"]
    assert found.t_test < 1e-50
    assert found.permutation_test == found.adjusted == 1 / 1000
    assert 0.27 < found.interval[0] < found.difference < found.interval[1] < 0.33
    assert compare_runs(*runs, resamples=999, seed=4)["ndcg@10"] == found


def test_a_user_whom_either_run_leaves_out_is_left_out() -> None:
    found = compare_runs(*values([0.1, math.nan, 0.3, 0.5], [0.2, 0.5, math.nan, 0.7]), resamples=10)["ndcg@10"]
    assert found.users == 2
    assert found.difference == pytest.approx(0.15)


def test_runs_on_other_users_are_not_compared() -> None:
    first, second = values([0.1, 0.2], [0.1, 0.2, 0.3])
    with pytest.raises(DataError, match=r"the first was evaluated on 2 users and the second on 3, not the same ones;"):
        compare_runs(first, second)


def test_a_single_user_is_no_comparison() -> None:
    with pytest.raises(
        DataError, match=r"^ndcg@10 has values of 1 users in both runs; a comparison needs at least two$"
    ):
        compare_runs(*values([0.1], [0.2]))


def test_settings_that_cannot_be_meant_are_refused() -> None:
    runs = values([0.1, 0.2], [0.1, 0.2])
    for options in ({"resamples": 0}, {"confidence": 1.0}):
        with pytest.raises(ConfigError, match=r"give a number from 1 on, and one in \(0, 1\)$"):
            compare_runs(*runs, **options)


def test_a_metric_without_values_by_user_is_named() -> None:
    with pytest.raises(
        UnknownMetricError, match=r"^there are no values of 'ndcg@20' by user; .*did you mean 'ndcg@10'"
    ):
        compare_runs(*values([0.1, 0.2], [0.1, 0.2]), ["ndcg@20"])
