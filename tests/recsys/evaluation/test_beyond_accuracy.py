"""Metrics of more than hits equal NumPy, SciPy and scikit-learn, or what their papers say."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.guards.no_sync import DEVICES, no_sync
from tests.recsys.evaluation.cases import items_of
from treadle.errors import ConfigError, DataError
from treadle.recsys.data.sampling import UserItems
from treadle.recsys.evaluation import (
    FullRanking,
    GroupRates,
    Groups,
    MetricPlan,
    SampledRanking,
    find_metric,
    relevance_by_key,
)
from treadle.recsys.evaluation import evaluator as classes

USERS, ITEMS, CATEGORIES, TOPK = 40, 30, 5, [3, 7]
BY_USER = [
    *("FirstStageRecall", "GradedNDCG", "UserCoverage", "IntraListDiversity", "Novelty", "Serendipity"),
    *("PopularityLift", "Miscalibration"),
]
BY_GROUP = [
    *("UserRecallGap", "UserRecallRatio", "ItemRecallGap", "ItemRecallRatio"),
    *("ItemExposureGap", "ItemExposureRatio"),
]


class World:
    """Users with a past and a future, and items with categories, drawn once."""

    def __init__(self) -> None:
        generator = np.random.default_rng(5)
        owned = generator.random((USERS, ITEMS)) < 0.35
        owned[:, 0] = False  # padding
        wanted = (generator.random((USERS, ITEMS)) < 0.15) & ~owned
        wanted[:, 0] = False
        owned[3, 1:], wanted[3] = True, False  # two items are left for user 3
        owned[3, [4, 9]], wanted[3, [4]] = False, True
        owned[5] = False  # user 5 has no past
        self.owned, self.wanted = owned, wanted
        self.scores = generator.permuted(np.tile(np.arange(ITEMS, dtype=np.float32), (USERS, 1)), axis=1)
        self.grades = generator.integers(0, 5, (USERS, ITEMS)).astype(float)
        self.categories = (generator.random((ITEMS, CATEGORIES)) < 0.4).astype(float)
        self.categories[7] = 0  # an item without any
        self.counts = owned.sum(axis=0)
        self.counts[11] = 0  # an item that training does not have
        self.user_group = generator.integers(-1, 3, USERS)
        self.item_group = generator.integers(0, 3, ITEMS)
        self.item_group[0] = -1

    def table(self, pairs: Any) -> UserItems:
        users, items = (torch.from_numpy(ids) for ids in np.nonzero(pairs))
        return UserItems(users, items, num_users=USERS, num_items=ITEMS)

    def options(self) -> dict[str, Any]:
        wanted = self.table(self.wanted)
        grades = torch.from_numpy(self.grades)[wanted.users, wanted.items]
        return {
            "history": self.table(self.owned),
            "relevance": relevance_by_key(wanted, wanted.users.flip(0), wanted.items.flip(0), grades.flip(0)),
            "user_groups": [Groups("side", ("a", "b", "c"), torch.from_numpy(self.user_group))],
            "item_groups": [Groups("kind", ("x", "y", "z"), torch.from_numpy(self.item_group))],
        }

    def plan(self, metrics: list[str], **options: Any) -> MetricPlan:
        given: dict[str, Any] = {"item_counts": torch.from_numpy(self.counts), "first_stage": [5, 15]}
        given["item_categories"] = torch.from_numpy(self.categories)
        return MetricPlan(metrics, TOPK, num_items=ITEMS, **{**given, **options})

    def scorer(self, users: Tensor) -> Tensor:
        return torch.from_numpy(self.scores)[users]

    def ranked(self, user: int, k: int) -> list[int]:
        left = [item for item in range(1, ITEMS) if not self.owned[user, item]]
        return sorted(left, key=lambda item: -self.scores[user, item])[:k]

    def users(self) -> list[int]:
        return [user for user in range(USERS) if self.wanted[user].any()]


WORLD = World()
POPULAR = sorted(range(1, ITEMS), key=lambda item: (-WORLD.counts[item], item))


def graded_ndcg(user: int, k: int) -> float:
    metrics = pytest.importorskip("sklearn.metrics")
    left = np.flatnonzero(~WORLD.owned[user])[1:]
    gains = np.where(WORLD.wanted[user], 2 ** WORLD.grades[user] - 1, 0)[left]
    return float(metrics.ndcg_score([gains], [WORLD.scores[user][left]], k=k)) if gains.any() else math.nan


def intra_list_diversity(user: int, k: int) -> float:
    distance = pytest.importorskip("scipy.spatial.distance")
    known = [WORLD.categories[item] for item in WORLD.ranked(user, k) if WORLD.categories[item].any()]
    return float(np.mean(distance.pdist(known, "cosine"))) if len(known) > 1 else math.nan


def novelty(user: int, k: int) -> float:
    shares = [max(WORLD.counts[item], 1) / WORLD.counts.sum() for item in WORLD.ranked(user, k)]
    return float(np.mean(-np.log2(shares)))


def serendipity(user: int, k: int) -> float:
    return sum(WORLD.wanted[user, item] and item not in POPULAR[:k] for item in WORLD.ranked(user, k)) / k


def miscalibration(user: int, k: int) -> float:
    distance = pytest.importorskip("scipy.spatial.distance")

    def shares(items: Any) -> Any:
        rows = [row / row.sum() for row in WORLD.categories[items] if row.any()]
        return np.mean(rows, axis=0) if rows else np.full(CATEGORIES, np.nan)

    wanted, shown = shares(np.flatnonzero(WORLD.owned[user])), shares(WORLD.ranked(user, k))
    return float(distance.jensenshannon(wanted, shown, base=2) ** 2)


def first_stage_recall(user: int, k: int) -> float:
    return sum(WORLD.wanted[user, item] for item in WORLD.ranked(user, k)) / WORLD.wanted[user].sum()


def user_coverage(user: int, k: int) -> float:
    return float(len(WORLD.ranked(user, k)) == k)


def popularity_lift(k: int) -> float:
    """The mean popularity of what is recommended, by that of what users have; less one."""
    users = [user for user in WORLD.users() if WORLD.owned[user].any()]
    shown = np.mean([np.mean(WORLD.counts[WORLD.ranked(user, k)]) for user in users])
    return float(shown / np.mean([np.mean(WORLD.counts[WORLD.owned[user]]) for user in users]) - 1)


def group_rates(k: int) -> dict[str, list[float]]:
    users = WORLD.users()
    recall = {user: first_stage_recall(user, k) for user in users}
    by_user = [np.mean([recall[user] for user in users if WORLD.user_group[user] == place]) for place in range(3)]
    hits, positives, exposure = np.zeros(3), np.zeros(3), np.zeros(3)
    for user in users:
        np.add.at(positives, WORLD.item_group[WORLD.wanted[user]], 1)
        for rank, item in enumerate(WORLD.ranked(user, k), 1):
            exposure[WORLD.item_group[item]] += 1 / np.log2(rank + 1)
            hits[WORLD.item_group[item]] += WORLD.wanted[user, item]
    sizes = np.bincount(WORLD.item_group[1:], minlength=3) / (ITEMS - 1)
    return {"UserRecall": by_user, "ItemRecall": hits / positives, "ItemExposure": exposure / exposure.sum() / sizes}


def reference() -> dict[str, float]:
    found = {}
    for name in (graded_ndcg, intra_list_diversity, novelty, serendipity, miscalibration, user_coverage):
        for k in TOPK:
            found[f"{name.__name__.replace('_', '')}@{k}"] = np.nanmean([name(user, k) for user in WORLD.users()])
    for k in (5, 15):
        found[f"firststagerecall@{k}"] = np.mean([first_stage_recall(user, k) for user in WORLD.users()])
    for k in TOPK:
        found[f"popularitylift@{k}"] = popularity_lift(k)
        for name, rates in group_rates(k).items():
            found[f"{name.lower()}gap@{k}"] = max(rates) - min(rates)
            found[f"{name.lower()}ratio@{k}"] = min(rates) / max(rates)
    return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize("chunk", [None, 7])
def test_every_metric_equals_its_reference(chunk: int | None) -> None:
    plan = WORLD.plan([*BY_USER, *BY_GROUP])
    ranking = FullRanking(
        plan, WORLD.table(WORLD.wanted), seen=WORLD.table(WORLD.owned), chunk=chunk, **WORLD.options()
    )
    found = ranking.evaluate(WORLD.scorer).metrics
    expected = reference()
    assert set(found) == set(expected) == set(plan.keys)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-9), name
    assert 0 < found["miscalibration@3"] < 1
    assert found["usercoverage@7"] == 1 - 1 / len(WORLD.users())


def test_a_ranking_among_all_that_is_left_equals_the_full_one() -> None:
    plan, wanted = WORLD.plan([*BY_USER, *BY_GROUP]), WORLD.table(WORLD.wanted)
    left = ~WORLD.owned & ~WORLD.wanted
    left[:, 0] = False
    ranking = SampledRanking(plan, wanted, WORLD.table(left), pairs_at_once=100, **WORLD.options())
    expected = FullRanking(plan, wanted, seen=WORLD.table(WORLD.owned), **WORLD.options()).evaluate(WORLD.scorer)
    assert ranking.evaluate(WORLD.scorer).metrics == pytest.approx(expected.metrics, rel=1e-12)


def test_parts_of_the_users_add_up_to_the_same_numbers() -> None:
    plan, wanted = WORLD.plan([*BY_USER, *BY_GROUP]), WORLD.table(WORLD.wanted)

    def ranking(users: list[int]) -> FullRanking:
        return FullRanking(plan, wanted, seen=WORLD.table(WORLD.owned), users=torch.tensor(users), **WORLD.options())

    whole = ranking(WORLD.users()).evaluate(WORLD.scorer).metrics
    state = ranking(WORLD.users()[::3]).accumulate(WORLD.scorer)
    state.merge(ranking([user for user in WORLD.users() if user not in WORLD.users()[::3]]).accumulate(WORLD.scorer))
    assert state.result().metrics == pytest.approx(whole, rel=1e-12)
    exact = [name for name in whole if name.startswith("item")]
    assert [state.result()[name] for name in exact] == [whole[name] for name in exact]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sampled", [False, True])
def test_the_device_is_not_read_while_users_are_ranked(sampled: bool, device: str) -> None:
    plan, wanted, owned = WORLD.plan([*BY_USER, *BY_GROUP]), WORLD.table(WORLD.wanted), WORLD.table(WORLD.owned)
    left = ~WORLD.owned & ~WORLD.wanted
    left[:, 0] = False
    scores = torch.from_numpy(WORLD.scores).to(device)

    def scorer(users: Tensor) -> Tensor:
        return scores[users]

    expected = FullRanking(plan, wanted, seen=owned, **WORLD.options()).evaluate(WORLD.scorer).metrics
    if sampled:
        among = SampledRanking(plan, wanted.to(device), WORLD.table(left), pairs_at_once=100, **WORLD.options())
        with no_sync(device):
            state = among.accumulate(scorer, None)[0]
    else:
        full = FullRanking(plan, wanted.to(device), seen=owned.to(device), chunk=9, **WORLD.options())
        with no_sync(device):
            state = full.accumulate(scorer)
    assert state.result().metrics == pytest.approx(expected, rel=1e-12)


def test_graded_ndcg_is_that_of_a_worked_example() -> None:
    # The grades 3, 2, 3, 0, 1, 2 in the order of the list, as in the usual example of the measure.
    grades = [3.0, 2.0, 3.0, 0.0, 1.0, 2.0]
    gained = sum((2**grade - 1) / math.log2(rank + 1) for rank, grade in enumerate(grades, 1))
    best = sum((2**grade - 1) / math.log2(rank + 1) for rank, grade in enumerate(sorted(grades, reverse=True), 1))
    ranking = FullRanking(
        MetricPlan("GradedNDCG", 6, num_items=7),
        items_of([[1, 2, 3, 4, 5, 6]], num_items=7),
        relevance=torch.tensor(grades),
    )
    found = ranking.evaluate(lambda users: -torch.arange(7.0).repeat(len(users), 1))
    assert found["GradedNDCG@6"] == pytest.approx(gained / best, rel=1e-15)
    assert gained == pytest.approx(13.84826, abs=1e-5)


def test_gains_of_zero_and_one_give_the_binary_measure() -> None:
    wanted, seen = WORLD.table(WORLD.wanted), WORLD.table(WORLD.owned)
    ones = torch.ones(len(wanted))
    found = FullRanking(WORLD.plan(["NDCG", "GradedNDCG"]), wanted, seen=seen, relevance=ones).evaluate(WORLD.scorer)
    assert found["gradedndcg@7"] == pytest.approx(found["ndcg@7"], rel=1e-12)


def test_the_relevance_of_a_pair_given_twice_is_the_higher_one() -> None:
    positives = items_of([[2, 3]], num_items=4)
    users, items = torch.tensor([0, 0, 0]), torch.tensor([3, 2, 3])
    assert relevance_by_key(positives, users, items, torch.tensor([1.0, 4.0, 2.0])).tolist() == [4.0, 2.0]


def test_groups_that_fare_alike_are_fair_and_empty_ones_do_not_count() -> None:
    gap, ratio = (find_metric(name).function for name in ("ItemRecallGap", "ItemRecallRatio"))

    def values(*rates: float) -> list[float]:
        given = GroupRates(torch.tensor(rates), torch.tensor(rates))
        return [float(gap(given, 1)), float(ratio(given, 1))]

    assert values(0.5, 0.5, math.nan) == [0.0, 1.0]
    assert values(0.25, 0.5) == [0.25, 0.5]
    assert values(0.0, 0.0) == [0.0, 1.0]
    assert all(math.isnan(value) for value in values(math.nan, math.nan))


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("Novelty", r"^\['Novelty'\] look at how often items were used in training; pass item_counts$"),
        ("Miscalibration", r"^\['Miscalibration'\] look at the categories of items; pass item_categories$"),
        (
            "IntraListDiversity",
            r"^\['IntraListDiversity'\] look at what tells items apart; pass item_categories or item_vectors$",
        ),
        ("PopularityLift", r"^\['PopularityLift'\] look at what users have in training; pass history$"),
        ("GradedNDCG", r"^\['GradedNDCG'\] look at how much each positive is worth; pass relevance$"),
        ("UserRecallGap", r"^\['UserRecallGap'\] compare groups of users; pass user_groups$"),
        ("ItemExposureRatio", r"^\['ItemExposureRatio'\] compare groups of items; pass item_groups$"),
    ],
)
def test_what_is_missing_is_told_before_anything_is_ranked(metric: str, message: str) -> None:
    counts = {} if metric == "Novelty" else {"item_counts": torch.ones(4)}
    own = items_of([[1]], num_items=4)
    with pytest.raises(ConfigError, match=message):
        FullRanking(MetricPlan(metric, 1, num_items=4, **counts), own)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        SampledRanking(MetricPlan(metric, 1, num_items=4, **counts), own, own)  # type: ignore[arg-type]


def test_relevance_that_is_no_grade_is_refused() -> None:
    plan, own = MetricPlan("GradedNDCG", 1, num_items=4), items_of([[1, 2]], num_items=4)
    with pytest.raises(DataError, match=r"^relevance has the shape \(1,\); give one for each of 2 positives$"):
        FullRanking(plan, own, relevance=torch.ones(1))
    with pytest.raises(DataError, match=r"^relevance goes from -1 to 3: .* so give grades from 0 to 50, such as"):
        FullRanking(plan, own, relevance=torch.tensor([-1.0, 3.0]))


def test_the_lists_of_a_first_stage_have_lengths_of_their_own() -> None:
    plan = WORLD.plan(["Recall", "FirstStageRecall"])
    assert plan.keys == ["recall@3", "recall@7", "firststagerecall@5", "firststagerecall@15"]
    assert plan.longest == 15
    with pytest.raises(ConfigError, match=r"^first_stage=\[40\]: 40 is more than the 29 items there are"):
        WORLD.plan(["FirstStageRecall"], first_stage=[40])
    own = items_of([[1]], num_items=30)
    with pytest.raises(ConfigError, match=r"^first_stage=\[5, 15\]: 15 is more than the 3 candidates that any user"):
        SampledRanking(plan, own, items_of([[2, 3]], num_items=30))


def test_what_nobody_can_give_cannot_be_required() -> None:
    from treadle.recsys.evaluation import register_metric

    with pytest.raises(ConfigError, match=r"^metric 'Own': requires='prices' is none of \['item_counts', "):
        register_metric("Own", requires=["prices"])


def test_an_evaluator_of_ones_own_is_told_what_it_cannot_calculate() -> None:
    made = classes.metric_class("Serendipity")({"metric_decimal_place": 4})
    with pytest.raises(ConfigError, match=r"^metric 'Serendipity' needs to know more than an Evaluator is told; leave"):
        made.calculate_metric(classes.DataStruct())
