"""Negatives of an evaluation: fixed for a split, no two alike, drawn as an endless series would draw them."""

import sys
from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.recsys.sampling.test_negatives import COUNTS, SEEN, items_of, make
from treadle.errors import ConfigError
from treadle.recsys.data.sampling import EvaluationMode, UserItems, evaluation_negatives

kinds = pytest.mark.parametrize("kind", ["uniform", "popularity"])
POSITIVES = items_of([4], [1, 2], [], [3])


def lists(negatives: UserItems) -> dict[int, list[int]]:
    return {user: negatives.items[negatives.users == user].tolist() for user in range(negatives.num_users)}


@kinds
@given(seed=st.integers(0, 2**40), per_positive=st.integers(1, 9))
def test_no_two_negatives_are_alike_and_none_was_seen(kind: str, seed: int, per_positive: int) -> None:
    sampler = make(kind)
    drawn = lists(evaluation_negatives(sampler, POSITIVES, per_positive, seed=seed))
    unseen = {user: [item for item in range(1, 8) if item not in lists(SEEN)[user]] for user in range(4)}
    for user, number in enumerate([1, 2, 0, 1]):
        assert len(drawn[user]) == len(set(drawn[user])) == min(number * per_positive, len(unseen[user]))
        assert set(drawn[user]) <= set(unseen[user])


@kinds
def test_a_users_negatives_depend_on_no_other_user(kind: str) -> None:
    whole = lists(evaluation_negatives(make(kind), POSITIVES, 2, seed=8))
    for users in ([0], [3, 0], [1]):
        part = lists(evaluation_negatives(make(kind), POSITIVES, 2, seed=8, users=torch.tensor(users)))
        assert {user: part[user] for user in users} == {user: whole[user] for user in users}


@kinds
def test_negatives_of_an_evaluation_never_disturb_training(kind: str) -> None:
    state, sampler, users = torch.get_rng_state(), make(kind), torch.tensor([0, 1, 0, 1])
    before = sampler.sample(users, 3, seed=2020)
    first = evaluation_negatives(sampler, POSITIVES, 2, seed=2020)
    second = evaluation_negatives(sampler, POSITIVES, 2, seed=2020)
    assert torch.equal(first.keys, second.keys)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(sampler.sample(users, 3, seed=2020), before)


@pytest.fixture(params=[8, 1, 0], ids=["drawn", "drawn and filled up", "filled up"])
def rounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many rounds of draws there are before the rest is chosen among all items that are left."""
    module = sys.modules[evaluation_negatives.__module__]
    monkeypatch.setattr(module, "ROUNDS", request.param)
    return int(request.param)


def chance(chosen: set[int], weights: dict[int, float]) -> float:
    """Return how likely successive draws without replacement give just this set."""
    total = 0.0
    for order in permutations(chosen):
        left, likely = dict(weights), 1.0
        for item in order:
            likely *= left.pop(item) / (sum(left.values()) + weights[item])
        total += likely
    return total


@kinds
def test_negatives_are_what_successive_draws_give(kind: str, rounds: int) -> None:
    # As many users as trials, all alike: each draws for himself.
    trials = 3000
    seen, positives = items_of(*[[1, 4]] * trials), items_of(*[[4]] * trials)
    drawn = evaluation_negatives(make(kind, seen), positives, 2, seed=1)
    found = Counter(map(tuple, drawn.items.view(trials, 2).tolist()))
    weights = {item: 1.0 if kind == "uniform" else float(COUNTS[item]) for item in (2, 3, 5, 6, 7)}
    expected = {chosen: chance({*chosen}, weights) * trials for chosen in pairs(weights)}
    assert sum(expected.values()) == pytest.approx(trials)
    distance = sum((found[chosen] - number) ** 2 / number for chosen, number in expected.items())
    assert distance < 21.67  # 99 % of chi-square with 9 degrees of freedom


def pairs(items: dict[int, float]) -> list[tuple[int, int]]:
    return [(one, two) for one in items for two in items if one < two]


def test_items_without_a_count_are_no_negatives_by_popularity() -> None:
    sampler = make("popularity", counts=torch.tensor([0, 5, 0, 3, 7, 1, 0, 0]))
    drawn = lists(evaluation_negatives(sampler, POSITIVES, 7, seed=0, users=torch.tensor([0, 1])))
    assert drawn[0] == [3, 5]
    assert drawn[1] == [1, 3, 4, 5]


def test_modes_are_read_as_recbole_writes_them() -> None:
    assert EvaluationMode.parse("full") == EvaluationMode("full")
    assert EvaluationMode.parse("labeled") == EvaluationMode("labeled")
    assert EvaluationMode.parse("uni100") == EvaluationMode("uniform", 100)
    assert EvaluationMode.parse("pop20") == EvaluationMode("popularity", 20)


@pytest.mark.parametrize("text", ["uni", "uni0", "unif100", "100", "Full", "pop-3"])
def test_a_mode_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"^evaluation mode '{text}': choose 'full', 'labeled', 'uniN' or 'popN'"):
        EvaluationMode.parse(text)


def test_a_positive_needs_a_negative() -> None:
    with pytest.raises(ConfigError, match=r"^per_positive=0: rank each positive among at least one negative$"):
        evaluation_negatives(make("uniform"), POSITIVES, 0, seed=0)
