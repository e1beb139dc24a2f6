"""Published results that need no training come out to four digits, on the real data."""

import pytest

from tests.recsys.evaluation.anchors import gf_cf, item_pop, load
from treadle.recsys.data.sampling import UserItems
from treadle.recsys.evaluation import FullRanking, MetricPlan


def ranking(train: UserItems, test: UserItems) -> FullRanking:
    plan = MetricPlan(["Recall", "NDCG"], 20, num_items=train.num_items, first_item=0)
    return FullRanking(plan, test, seen=train)


@pytest.mark.slow
def test_item_popularity_on_gowalla() -> None:
    train, test = load("gowalla")
    assert (len(train), len(test), train.num_users, train.num_items) == (810_128, 217_242, 29_858, 40_981)
    found = ranking(train, test).evaluate(item_pop(train))
    assert found.rounded() == {"recall@20": 0.0416, "ndcg@20": 0.0317}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gf_cf_comes_out_to_four_digits() -> None:
    # On Gowalla the door's own GFCF comes out so, with the same ranking: tests/recsys/models/test_fitted_models.py.
    train, test = load("ml-1m/lcfn")
    found = ranking(train, test).evaluate(gf_cf(train))
    assert found.rounded() == {"recall@20": 0.2667, "ndcg@20": 0.2549}
