"""Full ranking: in chunks, on the device, without harm to the scorer, and with clear refusals."""

from functools import partial

import pytest
import torch
from torch import Tensor

from tests.guards.no_sync import DEVICES, no_sync
from tests.recsys.evaluation.cases import EVERYTHING, items_of
from treadle.errors import ConfigError, DataError, NonFiniteError
from treadle.recsys.data.sampling import UserItems
from treadle.recsys.evaluation import (
    FullRanking,
    MetricPlan,
    groups_by_count,
    recommend_items,
    scores_from_pairs,
)
from treadle.recsys.evaluation.scoring import users_at_once

USERS, ITEMS = 40, 700


def random_items(number: int, seed: int) -> UserItems:
    generator = torch.Generator().manual_seed(seed)
    users = torch.randint(0, USERS, (number,), generator=generator)
    return UserItems(users, torch.randint(1, ITEMS, (number,), generator=generator), num_users=USERS, num_items=ITEMS)


SEEN, POSITIVES = random_items(2000, 1), random_items(200, 2)
# Multiples of 1/16: their products add up without rounding, and so to the same scores on every device.
VECTORS = torch.randn(USERS + ITEMS, 8, generator=torch.Generator().manual_seed(3)).mul(16).round().div(16)
COUNTS = torch.bincount(SEEN.items, minlength=ITEMS)


def scorer(users: Tensor, vectors: Tensor = VECTORS) -> Tensor:
    return vectors[users] @ vectors[USERS:].T


def plan(metrics: list[str] = EVERYTHING, topk: tuple[int, ...] = (5, 10)) -> MetricPlan:
    return MetricPlan(metrics, topk, num_items=ITEMS, item_counts=COUNTS)


def test_the_size_of_chunks_does_not_show() -> None:
    whole = FullRanking(plan(), POSITIVES, seen=SEEN).evaluate(scorer).metrics
    for options in ({"chunk": 1}, {"chunk": 7}, {"memory": 20_000}):
        assert FullRanking(plan(), POSITIVES, seen=SEEN, **options).evaluate(scorer).metrics == pytest.approx(whole)


def test_fact_4_the_users_of_a_small_data_set_are_scored_at_once() -> None:
    # RecBole scores eval_batch_size // num_items users at a time: two of them for 1,682 items.
    calls: list[int] = []

    def counting(users: Tensor) -> Tensor:
        calls.append(len(users))
        return torch.zeros(len(users), 1683)

    users = torch.arange(943)
    positives = UserItems(users, users + 1, num_users=943, num_items=1683)
    FullRanking(MetricPlan("Recall", num_items=1683), positives).evaluate(counting)
    assert calls == [943]


def test_fact_4_chunks_are_sized_by_memory() -> None:
    assert users_at_once(1000, torch.device("cpu"), memory=8 * 1000 * 64) == 64
    assert users_at_once(10**9, torch.device("cpu")) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_the_device_is_read_once_when_everything_is_done(device: str) -> None:
    active = groups_by_count("activity", SEEN.counts, [45, 55])
    popular = groups_by_count("popularity", COUNTS, [3], first_id=1)
    ranking = FullRanking(
        plan(),
        POSITIVES.to(device),
        seen=SEEN.to(device),
        chunk=9,
        user_groups=[active],
        item_groups=[popular],
        keep_per_user=True,
    )
    there = partial(scorer, vectors=VECTORS.to(device))
    with no_sync(device):
        state = ranking.accumulate(there)
    reads: list[str] = []
    original = Tensor.tolist
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "tolist", lambda self: reads.append("tolist") or original(self))
        patch.setattr(Tensor, "item", lambda self: reads.append("item"))
        found = state.result()
    assert reads == ["tolist"]
    reference = FullRanking(plan(), POSITIVES, seen=SEEN).evaluate(scorer)
    assert found.metrics == pytest.approx(reference.metrics, rel=1e-12)


def test_scores_that_the_scorer_still_needs_are_not_written_to() -> None:
    stored = scorer(torch.arange(USERS))
    copy = stored.clone()
    ranking = FullRanking(plan(["Recall"]), POSITIVES, seen=SEEN, chunk=16)
    by_slices = ranking.evaluate(lambda users: stored[int(users[0]) : int(users[0]) + len(users)])
    assert torch.equal(stored, copy)
    assert by_slices.metrics == ranking.evaluate(scorer).metrics
    row = torch.arange(ITEMS).float()
    ranking.evaluate(lambda users: row.expand(len(users), -1))
    assert torch.equal(row, torch.arange(ITEMS).float())


def test_scores_in_half_precision_are_ranked() -> None:
    exact = torch.arange(ITEMS).float() // 8
    ranking = FullRanking(plan(["Recall", "NDCG"]), POSITIVES, seen=SEEN)
    halves = ranking.evaluate(lambda users: exact.bfloat16().repeat(len(users), 1))
    assert halves.metrics == ranking.evaluate(lambda users: exact.repeat(len(users), 1)).metrics


def precisions() -> tuple[str, str]:
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


@pytest.mark.parametrize("way", ["for all backends", "for one backend"])
def test_scores_are_taken_in_full_precision_without_gradients_and_settings_come_back(way: str) -> None:
    seen: list[tuple[object, ...]] = []

    def watching(users: Tensor) -> Tensor:
        seen.append((*precisions(), torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()))
        return scorer(users)

    before = precisions()
    try:
        if way == "for all backends":
            torch.set_float32_matmul_precision("high")
        else:
            torch.backends.cuda.matmul.fp32_precision = "tf32"
        own = precisions()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            FullRanking(plan(["Recall"]), POSITIVES).evaluate(watching)
            assert torch.is_autocast_enabled("cpu")
        assert precisions() == own != ("ieee", "ieee")
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = before
    assert seen == [("ieee", "ieee", False, False)]


def test_a_parameter_that_a_scorer_returns_is_not_written_to() -> None:
    table = torch.nn.Parameter(scorer(torch.arange(USERS)))
    copy = table.detach().clone()
    FullRanking(plan(["Recall"]), POSITIVES, seen=SEEN).evaluate(lambda users: table)
    assert torch.equal(table, copy)


def test_scores_on_another_device_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^the scorer returned scores on meta for users on cpu; move the model$"):
        FullRanking(plan(["Recall"]), POSITIVES).evaluate(lambda users: scorer(users).to("meta"))


def test_a_positive_that_was_seen_before_can_be_found() -> None:
    both = items_of([[2]], num_items=4)
    found = FullRanking(MetricPlan("Hit", 1, num_items=4), both, seen=both).evaluate(
        lambda users: torch.tensor([[0.0, 1.0, 2.0, 1.0]])
    )
    assert found["hit@1"] == 1.0


def test_what_is_masked_is_not_recommended_where_nothing_else_is_left() -> None:
    # Three of four items seen: one recommendation, not three made up.
    positives, seen = items_of([[4]], num_items=5), items_of([[1, 2, 3]], num_items=5)
    metrics = MetricPlan(
        ["ItemCoverage", "AveragePopularity", "Precision"], 3, num_items=5, item_counts=torch.arange(5)
    )
    found = FullRanking(metrics, positives, seen=seen).evaluate(lambda users: torch.zeros(1, 5)).metrics
    assert found == {"itemcoverage@3": 1 / 4, "averagepopularity@3": 4.0, "precision@3": pytest.approx(1 / 3)}


def test_users_without_positives_are_left_out() -> None:
    positives = items_of([[1], [], [2]], num_items=3)
    found = FullRanking(MetricPlan("Hit", 1, num_items=3), positives).evaluate(
        lambda users: torch.tensor([0.0, 2.0, 1.0]).repeat(len(users), 1)
    )
    assert (found.users, found["hit@1"]) == (2, 0.5)


def test_chosen_users_only_are_ranked() -> None:
    result = FullRanking(plan(["Recall"]), POSITIVES, users=torch.tensor([5, 3, 5]), keep_per_user=True).evaluate(
        scorer
    )
    assert result.users == 2
    assert result.per_user is not None
    assert result.per_user.users.tolist() == [3, 5]


def test_scores_that_are_nan_are_an_error_that_counts_the_users() -> None:
    def broken(users: Tensor) -> Tensor:
        return torch.where(users.unsqueeze(1) < 3, torch.nan, scorer(users))

    message = r"^the scores of 3 of 40 users are nan, so they have no ranking; look at the model's weights"
    for metrics in (["Recall"], ["GAUC"]):
        with pytest.raises(NonFiniteError, match=message):
            FullRanking(plan(metrics), POSITIVES).evaluate(broken)


def test_a_scorer_that_returns_another_shape_is_refused() -> None:
    message = (
        r"^the scorer returned the shape \(40, 699\) for 40 users and 700 item ids; it has to return a score of each"
    )
    with pytest.raises(ConfigError, match=message):
        FullRanking(plan(["Recall"]), POSITIVES).evaluate(lambda users: scorer(users)[:, 1:])


def test_an_empty_split_is_refused_before_any_work() -> None:
    nobody = items_of([[], []], num_items=ITEMS)
    with pytest.raises(DataError, match=r"^no user has a positive to rank; the split is empty"):
        FullRanking(plan(), nobody)


def test_metrics_of_labels_are_refused_before_any_work() -> None:
    message = r"^full ranking cannot calculate \['AUC', 'LogLoss'\]; rank among sampled negatives"
    with pytest.raises(ConfigError, match=message):
        FullRanking(plan(["AUC", "Recall", "LogLoss"]), POSITIVES)


def test_a_plan_for_other_items_is_refused() -> None:
    message = r"planned for \(num_items, first_item\) = \(9, 1\), and the positives have \(700, 1\)"
    with pytest.raises(ConfigError, match=message):
        FullRanking(MetricPlan("Recall", 3, num_items=9), POSITIVES)


def test_a_chunk_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^chunk=0: score at least one user at a time$"):
        FullRanking(plan(), POSITIVES, chunk=0)


def test_a_scorer_of_pairs_makes_one_of_all_items() -> None:
    def of_pairs(users: Tensor, items: Tensor) -> Tensor:
        return (VECTORS[users] * VECTORS[USERS + items]).sum(dim=1)

    users = torch.tensor([3, 0, 7])
    for at_once in (1, 2 * ITEMS, 10**6):
        scores = scores_from_pairs(of_pairs, ITEMS, pairs_at_once=at_once)(users)
        torch.testing.assert_close(scores, scorer(users))


def test_recommendations_are_the_best_unseen_items_in_the_order_of_the_users() -> None:
    users = torch.tensor([7, 2, 7])
    items, values = recommend_items(scorer, users, 4, seen=SEEN, chunk=2)
    scores = scorer(users)
    for row, user in enumerate(users.tolist()):
        allowed = [item for item in range(1, ITEMS) if item not in SEEN.items[SEEN.users == user].tolist()]
        expected = sorted(allowed, key=lambda item: (-float(scores[row, item]), item))[:4]
        assert items[row].tolist() == expected
        torch.testing.assert_close(values[row], scores[row, expected])


def test_recommendations_end_where_nothing_is_left() -> None:
    seen = items_of([[1, 2]], num_items=4)
    items, values = recommend_items(lambda users: torch.ones(1, 4), torch.tensor([0]), 3, seen=seen)
    assert items.tolist() == [[3, -1, -1]]
    assert values.tolist() == [[1.0, -torch.inf, -torch.inf]]


def test_recommending_more_items_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^k=4: recommend at least one item, and at most the 3 there are$"):
        recommend_items(scorer, torch.tensor([0]), 4, seen=items_of([[]], num_items=4))


def test_nobody_gets_an_empty_table() -> None:
    items, values = recommend_items(scorer, torch.tensor([], dtype=torch.int64), 4, seen=SEEN)
    assert items.shape == values.shape == (0, 4)
