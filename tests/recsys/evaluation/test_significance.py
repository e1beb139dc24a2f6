"""Tests between two runs give the numbers of an independent implementation, and the right answers."""

import math
from itertools import product

import pytest
import torch

from tests.recsys.evaluation.cases import items_of
from treadle.errors import ConfigError, DataError, UnknownMetricError
from treadle.recsys.evaluation import (
    FullRanking,
    MetricPlan,
    PerUser,
    SampledRanking,
    adjust,
    compare_models,
    compare_runs,
    mean_intervals,
)
from treadle.recsys.evaluation.significance import (
    bootstrap_interval,
    incomplete_beta,
    paired_t_test,
    permutation_test,
    sign_test,
    wilcoxon_test,
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
    assert adjust([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust([0.9, 0.8]) == [1.0, 1.0]


def test_other_corrections_are_those_of_their_authors() -> None:
    stats = pytest.importorskip("scipy.stats")
    given = [0.01, 0.04, 0.03, 0.005, 0.6]
    assert adjust(given, "benjamini-hochberg") == pytest.approx(stats.false_discovery_control(given).tolist())
    assert adjust(given, "bonferroni") == pytest.approx([0.05, 0.2, 0.15, 0.025, 1.0])
    assert adjust(given, "none") == given
    with pytest.raises(ConfigError, match=r"^correction='holms' does not exist; did you mean 'holm'\?"):
        adjust(given, "holms")


@pytest.mark.parametrize("number", [5, 30, 50, 90, 400])
@pytest.mark.parametrize("ties", [False, True])
def test_wilcoxons_test_and_the_sign_test_are_those_of_scipy(number: int, ties: bool) -> None:
    stats = pytest.importorskip("scipy.stats")
    differences = noise(number, 0.1, seed=number)
    if ties:
        # Exact tables do not know ties: there all signs are tried for scipy, too, where that can be done.
        differences = (differences * 2).round()
        if 5 < number <= 50:
            differences = differences[:12]
    few = len(differences) <= 50
    how = stats.PermutationMethod(n_resamples=10**6) if ties and few else ("exact" if few else "approx")
    expected = stats.wilcoxon(differences.numpy(), method=how, correction=False)
    assert wilcoxon_test(differences) == pytest.approx(float(expected.pvalue), rel=1e-9)
    better, other = int((differences > 0).sum()), int((differences < 0).sum())
    assert sign_test(differences) == pytest.approx(stats.binomtest(better, better + other).pvalue, rel=1e-9, abs=1e-15)


def test_no_differences_say_nothing() -> None:
    assert wilcoxon_test(torch.zeros(5)) == sign_test(torch.zeros(5)) == 1.0


def test_the_interval_of_one_run_is_that_of_its_mean() -> None:
    values = noise(4000, 0.1, seed=3)
    values[:100] = math.nan
    run = PerUser(torch.arange(4000), {"ndcg@10": values})
    found = mean_intervals(run, resamples=4000)["ndcg@10"]
    there = values[100:]
    spread = 1.96 * float(there.std()) / math.sqrt(3900)
    assert (found.users, found.mean) == (3900, pytest.approx(float(there.mean())))
    assert (found.low, found.high) == pytest.approx((found.mean - spread, found.mean + spread), abs=0.1 * spread)
    assert mean_intervals(run, ["NDCG@10"], resamples=4000)["ndcg@10"] == found
    with pytest.raises(DataError, match=r"^ndcg@10 has no value of any user$"):
        mean_intervals(PerUser(torch.arange(2), {"ndcg@10": torch.full((2,), math.nan)}))


def test_several_models_are_compared_and_adjusted_together() -> None:
    runs = dict(zip("abc", values(*(noise(60, 0.3 * place, seed=place).tolist() for place in range(3))), strict=True))
    found = compare_models(runs, resamples=200, test="wilcoxon")
    assert [one.runs for one in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [one.adjusted for one in found] == adjust([one.wilcoxon for one in found])
    assert found[0].wilcoxon == compare_runs(runs["a"], runs["b"], resamples=200)["ndcg@10"].wilcoxon
    assert str(found[0]).startswith("a -> b, ndcg@10: ")
    with_first = compare_models(runs, baseline="b", correction="bonferroni", resamples=200)
    assert [one.runs for one in with_first] == [("b", "a"), ("b", "c")]
    assert sum(found[0].wins) == 60
    with pytest.raises(ConfigError, match=r"^models are compared with each other, .* give baseline='d' among them$"):
        compare_models(runs, baseline="d")
    with pytest.raises(ConfigError, match=r"give two runs at least$"):
        compare_models({"a": runs["a"]})


def test_two_splits_of_the_same_users_are_not_compared() -> None:
    plan, scores = MetricPlan("Hit", 1, num_items=5), torch.ones(2, 5)

    def evaluated(own: list[list[int]], seen: list[list[int]], among: bool = False) -> PerUser:
        tables = [items_of(own, num_items=5), items_of(seen, num_items=5)]
        ranking: FullRanking | SampledRanking = FullRanking(plan, tables[0], seen=tables[1], keep_per_user=True)
        if among:
            ranking = SampledRanking(plan, *tables, keep_per_user=True)
        found = ranking.evaluate(lambda users: scores[users]).per_user
        assert found is not None
        return found

    first = evaluated([[1], [2]], [[3], []])
    assert compare_runs(first, evaluated([[1], [2]], [[3], []]), resamples=10)["hit@1"].users == 2
    with pytest.raises(
        DataError, match=r"^the runs .* two splits of the same users, which differ in what is to be found;"
    ):
        compare_runs(first, evaluated([[1], [4]], [[3], []]))
    with pytest.raises(DataError, match=r"which differ in what is not recommended; evaluate both on one split"):
        compare_runs(first, evaluated([[1], [2]], [[3], [3]]))
    with pytest.raises(DataError, match=r"differ in what is not recommended and what it is ranked among;"):
        compare_runs(first, evaluated([[1], [2]], [[3], [3]], among=True))
    # Of values that come from elsewhere nothing is known.
    assert compare_runs(first, PerUser(first.users, first.values), resamples=10)["hit@1"].difference == 0


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
