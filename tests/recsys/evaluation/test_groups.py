"""Results by groups of users and of items."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.recsys.evaluation import oracle
from tests.recsys.evaluation.cases import Situation, items_of, situations
from treadle.errors import ConfigError, DataError
from treadle.recsys.data.sampling import UniformNegatives, evaluation_negatives
from treadle.recsys.evaluation import (
    FullRanking,
    Groups,
    MetricPlan,
    SampledRanking,
    groups_by_count,
    groups_by_quantile,
)

RATING = ["Hit", "MRR", "Recall", "Precision", "MAP", "NDCG"]


def restricted(case: oracle.Case, *, users: set[int] | None = None, items: set[int] | None = None) -> oracle.Case:
    """Return the case with the positives of some users, or some items, only."""
    positives = {
        user: [item for item in own if items is None or item in items] if users is None or user in users else []
        for user, own in case.positives.items()
    }
    return oracle.Case(**{**vars(case), "positives": positives})


@given(situation=situations(), data=st.data())
def test_each_group_has_the_metrics_of_its_own_users_or_positives(situation: Situation, data: st.DataObject) -> None:
    topk = data.draw(
        st.lists(st.integers(1, situation.num_items - situation.first_item), min_size=1, max_size=2, unique=True)
    )
    of_users = torch.tensor(data.draw(st.lists(st.integers(-1, 2), min_size=6, max_size=6)))[: len(situation.positives)]
    of_items = torch.tensor([data.draw(st.integers(-1, 1)) for _ in range(situation.num_items)])
    users, items = Groups("users", ("a", "b", "c"), of_users), Groups("items", ("x", "y"), of_items)
    result = FullRanking(
        situation.plan(topk),
        situation.table(situation.positives),
        seen=situation.table(situation.seen),
        user_groups=[users],
        item_groups=[items],
        chunk=2,
    ).evaluate(situation.scorer)
    case = situation.case()
    for place, label in enumerate(users.labels):
        members = {user for user in case.users if int(of_users[user]) == place}
        assert result.group_users["users"].get(label, 0) == len(members)
        part = restricted(case, users=members)
        for name, metric in oracle.BY_USER.items():
            for k in topk if members else []:
                expected = oracle.mean([metric(part, user, k) for user in part.users])
                found = result.groups["users"][label][f"{name.lower()}@{k}"]
                assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)
    for place, label in enumerate(items.labels):
        part = restricted(case, items={item for item in range(situation.num_items) if int(of_items[item]) == place})
        assert result.group_users["items"].get(label, 0) == len(part.users)
        assert part.users or label not in result.groups["items"]
        for name in RATING if part.users else []:
            for k in topk:
                expected = oracle.mean([oracle.BY_USER[name](part, user, k) for user in part.users])
                assert result.groups["items"][label][f"{name.lower()}@{k}"] == pytest.approx(expected, rel=1e-12)


def test_a_sampled_ranking_is_broken_down_as_well() -> None:
    positives = items_of([[1], [2, 3], [3]], num_items=6)
    negatives = evaluation_negatives(UniformNegatives(positives), positives, 2, seed=0)
    active = Groups("activity", ("low", "high"), torch.tensor([0, 1, 0]))
    popular = Groups("popularity", ("tail", "head"), torch.tensor([-1, 0, 0, 1, 1, 1]))
    plan = MetricPlan("Recall", 1, num_items=6)
    ranking = SampledRanking(plan, positives, negatives, user_groups=[active], item_groups=[popular])
    result = ranking.evaluate(lambda users: torch.tensor([0.0, 0, 9, 8, 0, 0]).repeat(len(users), 1))
    # User 0 finds nothing unless item 1 wins its ties; user 1 finds 2 of 2 and 3; user 2 finds 3.
    assert result.groups["activity"]["high"]["recall@1"] == 0.5
    assert result.groups["popularity"]["head"]["recall@1"] == 0.5
    assert result.group_users == {"activity": {"low": 2, "high": 1}, "popularity": {"tail": 2, "head": 2}}


def test_groups_by_count_begin_at_their_edges() -> None:
    groups = groups_by_count("activity", torch.tensor([7, 0, 4, 5, 19, 20, 999]), [5, 6, 20], first_id=1)
    assert groups.labels == ("0-4", "5", "6-19", "20+")
    assert groups.of.tolist() == [-1, 0, 0, 1, 2, 3, 3]


def test_groups_by_quantile_keep_equal_counts_together() -> None:
    groups = groups_by_quantile("popularity", torch.tensor([50, 1, 1, 1, 2, 3, 4, 5, 9]), 4, first_id=1)
    assert groups.labels == ("0-2", "3-4", "5+")
    assert groups.of.tolist() == [-1, 0, 0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("edges", [[], [0], [5, 5], [9, 3]])
def test_edges_that_do_not_rise_are_refused(edges: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"of 'activity': give rising whole numbers from 1 on$"):
        groups_by_count("activity", torch.tensor([1, 2]), edges)


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^'activity' cannot be divided: all ids have \[3\] interactions$"):
        groups_by_quantile("activity", torch.tensor([3, 3, 3]), 2)
    with pytest.raises(ConfigError, match=r"^parts=1 of 'activity': divide into at least two groups$"):
        groups_by_quantile("activity", torch.tensor([3, 4]), 1)


def test_a_division_of_other_ids_is_refused() -> None:
    positives, plan = items_of([[1], [2]], num_items=4), MetricPlan("Hit", 1, num_items=4)
    wrong = Groups("activity", ("all",), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(
        DataError, match=r"^groups 'activity' have the shape \(3,\); give the group of each of 2 user ids$"
    ):
        FullRanking(plan, positives, user_groups=[wrong])
    with pytest.raises(DataError, match=r"give the group of each of 4 item ids$"):
        FullRanking(plan, positives, item_groups=[wrong])


def test_two_divisions_of_one_name_are_refused() -> None:
    positives, plan = items_of([[1], [2]], num_items=4), MetricPlan("Hit", 1, num_items=4)
    groups = Groups("mine", ("all",), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(DataError, match=r"^groups are told apart by name, and these are called \['mine', 'mine'\]"):
        FullRanking(plan, positives, user_groups=[groups, groups])


def test_a_result_prints_its_groups() -> None:
    positives, plan = items_of([[1], [2]], num_items=4), MetricPlan("Hit", 1, num_items=4)
    groups = groups_by_count("activity", torch.tensor([3, 30]), [5])
    found = FullRanking(plan, positives, user_groups=[groups]).evaluate(lambda users: torch.ones(len(users), 4))
    assert str(found).splitlines() == [
        "all (2 users): hit@1 : 0.5",
        "activity 0-4 (1 users): hit@1 : 1.0",
        "activity 5+ (1 users): hit@1 : 0.0",
    ]
