"""What is to be calculated is checked before anything is: names, cut-offs, what a metric needs."""

import pytest
import torch
from torch import Tensor

from tests.recsys.evaluation.cases import items_of
from treadle.errors import ConfigError, UnknownMetricError
from treadle.recsys.evaluation import (
    EvaluationResult,
    FullRanking,
    LabelledEvaluation,
    LabelledRows,
    MetricPlan,
    Ranking,
    find_metric,
    metric_names,
    register_metric,
)
from treadle.recsys.evaluation import metrics as registry

SIXTEEN = [
    *("Hit", "MRR", "Recall", "Precision", "MAP", "NDCG", "GAUC", "AveragePopularity", "TailPercentage"),
    *("ItemCoverage", "GiniIndex", "ShannonEntropy", "AUC", "LogLoss", "MAE", "RMSE"),
]


@pytest.fixture(autouse=True)
def own_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test finds the metrics of Treadle alone, and what it registers is gone after it."""
    built_in = {name.lower(): registry._metrics[name.lower()] for name in SIXTEEN}
    monkeypatch.setattr(registry, "_metrics", built_in)


def test_the_sixteen_metrics_are_there() -> None:
    assert len(SIXTEEN) == 16
    assert metric_names() == sorted(SIXTEEN)


def test_results_are_named_as_recbole_names_them() -> None:
    plan = MetricPlan(["Recall", "MRR", "GAUC"], [10, 20], num_items=50)
    assert plan.keys == ["recall@10", "recall@20", "mrr@10", "mrr@20", "gauc"]


def test_names_are_taken_in_any_case_and_once() -> None:
    assert MetricPlan(["recall", "NDCG", "RECALL"], [5, 5], num_items=9).keys == ["recall@5", "ndcg@5"]


@pytest.mark.parametrize("topk", [50, [10, 50]])
def test_a_cutoff_above_the_number_of_items_is_refused(topk: int | list[int]) -> None:
    with pytest.raises(ConfigError, match=r"50 is more than the 49 items there are; choose a smaller k$"):
        MetricPlan("Recall", topk, num_items=50)


@pytest.mark.parametrize("topk", [0, -1, [True], [2.5], ["10"]])
def test_a_cutoff_that_is_no_length_is_refused(topk: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"is no length of a list; give whole numbers from 1 on$"):
        MetricPlan("Recall", topk, num_items=50)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": "Recal"}, r"^there is no metric 'Recal'; did you mean 'recall'\?$"),
        ({"metrics": "xyz"}, r"^there is no metric 'xyz'; there are \['AUC', 'AveragePopularity', 'GAUC'"),
        ({"metrics": []}, r"^metrics is empty; name at least one, such as 'NDCG'$"),
        ({"metrics": "Hit", "topk": []}, r"^topk is empty; give the k of the metrics, such as 10$"),
        ({"metrics": "Hit", "num_items": 0}, r"^\['Hit'\] rank items; pass num_items, the number of item ids$"),
        ({"metrics": "AveragePopularity"}, r"^\['AveragePopularity'\] look at how often items were used in training;"),
        (
            {"metrics": "TailPercentage", "item_counts": torch.ones(3)},
            r"^item_counts has the shape \(3,\); give one for each of 50 item ids$",
        ),
        (
            {"metrics": "TailPercentage", "item_counts": torch.ones(50), "tail_ratio": 0.0},
            r"^tail_ratio=0.0: give a share of the items up to 1, or a number of uses above 1$",
        ),
        ({"metrics": "GAUC", "gauc_weight": "clicks"}, "^gauc_weight='clicks': users weigh by 'impressions' or by"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MetricPlan(**{"num_items": 50, **arguments})


def test_the_metric_that_decides_is_found_in_any_case() -> None:
    plan = MetricPlan(["NDCG", "GiniIndex", "GAUC"], 10, num_items=50)
    assert plan.check_valid_metric("NDCG@10") == "ndcg@10"
    assert plan.bigger_is_better("ndcg@10")
    assert not plan.bigger_is_better("GiniIndex@10")
    assert plan.check_valid_metric("GAUC") == "gauc"


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("NDCG@20", r"; add 20 to topk$"),
        ("NDCG", r"; write 'ndcg@10'$"),
        ("GAUC@10", r"; gauc has no cut-off: write 'gauc'$"),
        ("NDGC@10", r"; did you mean 'ndcg@10'\?$"),
        ("MRR@10", r"\['ndcg@10', 'gauc'\]$"),
    ],
)
def test_a_metric_that_decides_but_is_not_calculated_is_refused(name: str, ending: str) -> None:
    plan = MetricPlan(["NDCG", "GAUC"], 10, num_items=50)
    with pytest.raises(UnknownMetricError, match=rf"^valid_metric='{name}' is not among what .*{ending}"):
        plan.check_valid_metric(name)


def test_a_metric_of_ranked_lists_of_ones_own() -> None:
    @register_metric("LastHit")
    def last_hit(ranking: Ranking, k: int) -> Tensor:
        """1 if the last of k places is a hit."""
        return ranking.hits[:, k - 1].double() * ranking.positives

    positives = items_of([[1, 2], [3]], num_items=4)
    plan = MetricPlan(["lasthit", "Hit"], 2, num_items=4)
    found = FullRanking(plan, positives).evaluate(
        lambda users: torch.tensor([0.0, 3.0, 2.0, 1.0]).repeat(len(users), 1)
    )
    assert found.metrics == {"lasthit@2": 1.0, "hit@2": 0.5}


def test_a_metric_of_the_catalogue_of_ones_own() -> None:
    @register_metric("Favourite", kind="catalogue", smaller=True)
    def favourite(counts: Tensor, k: int) -> Tensor:
        """How often the favourite item is recommended."""
        return counts.max()

    plan = MetricPlan("Favourite", 1, num_items=4)
    found = FullRanking(plan, items_of([[1], [3]], num_items=4)).evaluate(lambda users: torch.ones(len(users), 4))
    assert found.metrics == {"favourite@1": 2.0}
    assert not plan.bigger_is_better("Favourite@1")


def test_a_metric_of_labels_of_ones_own() -> None:
    @register_metric("Brier", kind="labelled", smaller=True)
    def brier(rows: LabelledRows) -> Tensor:
        """The mean squared error of probabilities."""
        return (rows.scores - rows.labels).square().mean()

    rows = LabelledEvaluation(MetricPlan("Brier"))
    rows.update(torch.tensor([0.5, 1.0]), torch.tensor([1, 1]))
    assert rows.result().metrics == {"brier": 0.125}


def test_a_user_for_whom_a_metric_is_nan_is_left_out_of_its_mean() -> None:
    @register_metric("OfLoyal")
    def of_loyal(ranking: Ranking, k: int) -> Tensor:
        """The number of positives of those who have several."""
        return torch.where(ranking.positives > 1, ranking.positives.double(), torch.nan)

    plan = MetricPlan("OfLoyal", 1, num_items=4)
    positives = items_of([[1, 2], [3], [1, 2, 3]], num_items=4)
    assert FullRanking(plan, positives).evaluate(lambda users: torch.zeros(len(users), 4))["ofloyal@1"] == 2.5


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            lambda ranking, k: ranking.hits.double(),
            r"returned the shape \(2, 1\); it has to return a value for each of 2 users",
        ),
        (lambda ranking, k: 0.5, r"^metric 'Wrong' returned a float; it has to return a value for each of 2 users$"),
    ],
)
def test_a_metric_that_returns_anything_else_is_refused(value: object, message: str) -> None:
    register_metric("Wrong")(value)
    ranking = FullRanking(MetricPlan("Wrong", 1, num_items=4), items_of([[1], [3]], num_items=4))
    with pytest.raises(ConfigError, match=message):
        ranking.evaluate(lambda users: torch.zeros(len(users), 4))


def test_a_metric_of_labels_that_returns_several_numbers_is_refused() -> None:
    register_metric("Wrong", kind="labelled")(lambda rows: rows.scores)
    rows = LabelledEvaluation(MetricPlan("Wrong"))
    rows.update(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ConfigError, match=r"^metric 'Wrong' returned 3 numbers; it has to return one$"):
        rows.result()


def test_a_name_is_not_given_twice_by_accident() -> None:
    with pytest.raises(ConfigError, match=r"^there is a metric 'NDCG' already; choose another name, or replace=True$"):
        register_metric("ndcg")(lambda ranking, k: ranking.positives)
    register_metric("ndcg", replace=True)(lambda ranking, k: ranking.positives)
    assert find_metric("NDCG").name == "ndcg"


def test_a_function_that_is_defined_again_takes_its_own_place() -> None:
    for times in (1.0, 2.0):

        @register_metric("Mine")
        def mine(ranking: Ranking, k: int, times: float = times) -> Tensor:
            """How many positives there are, so many times."""
            return ranking.positives * times

    found = FullRanking(MetricPlan("Mine", 1, num_items=4), items_of([[1, 2]], num_items=4))
    assert found.evaluate(lambda users: torch.zeros(1, 4))["mine@1"] == 4.0


@pytest.mark.parametrize("name", ["", "hit@10"])
def test_a_name_that_results_could_not_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^a metric cannot be called '{name}'"):
        register_metric(name)


def test_a_kind_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^metric 'Mine': kind='topk' is none of \['ranking', 'pairs'"):
        register_metric("Mine", kind="topk")


def test_a_result_is_rounded_for_readers_and_kept_as_it_is() -> None:
    result = EvaluationResult({"recall@10": 0.123456, "mrr@10": 1 / 3}, users=7)
    assert result.rounded() == {"recall@10": 0.1235, "mrr@10": 0.3333}
    assert result.rounded(2) == {"recall@10": 0.12, "mrr@10": 0.33}
    assert result["MRR@10"] == 1 / 3
    assert str(result) == "all (7 users): recall@10 : 0.1235    mrr@10 : 0.3333"


def test_a_value_that_a_result_does_not_have_is_refused() -> None:
    with pytest.raises(
        UnknownMetricError, match=r"^'recall@20' was not calculated; there are \['recall@10'\]; did you"
    ):
        EvaluationResult({"recall@10": 0.5})["recall@20"]
