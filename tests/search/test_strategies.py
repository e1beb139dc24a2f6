"""Strategies: what they propose, from what they know, and from nothing else."""

import random
from collections import Counter
from typing import Any

import pytest

from tests.search.support import Net, letters, numbers, vowels
from treadle import nas
from treadle.errors import ConfigError
from treadle.nas.classic.network_space import as_search_space
from treadle.search import Random, Sampled
from treadle.search.space.base import Searched
from treadle.search.store.history import Outcome, Proposal
from treadle.search.strategies.evolution import distance, mutated
from treadle.search.strategies.grid import permuted


def proposal(searched: Searched, outcomes: list[Outcome], seed: int = 0) -> Proposal:
    """Return what a strategy that asks Optuna nothing is given."""
    nothing: Any = None
    return Proposal(searched, nothing, nothing, random.Random(seed), outcomes, {}, 0, (), {})


def aged(values: list[float]) -> list[Outcome]:
    """Return results of words that tell their own age: the letter of each is its number."""
    return [Outcome(number, {"x": number, "y": 0}, (value,)) for number, value in enumerate(values)]


SPACE = as_search_space({"x": nas.integer(0, 99), "y": nas.one_of(*range(10))})


def test_evolution_draws_its_first_population_at_random() -> None:
    strategy = nas.Evolution(population=5, sample=2)
    drawn = [strategy.propose(proposal(SPACE, aged([0.0] * 4), seed)) for seed in range(50)]
    assert len({one["x"] for one in drawn}) > 20


def test_evolution_takes_the_best_of_a_few_as_parent_and_changes_one_decision() -> None:
    asked = proposal(SPACE, aged([3.0, 1.0, 2.0]))
    child = nas.Evolution(population=3, sample=3).propose(asked)
    parent = {"x": 1, "y": 0}  # all three compete, and the second is the smallest
    assert distance(child, parent) == 1
    assert asked.notes == {"parent": 1}


def test_the_oldest_dies_however_good_it_is() -> None:
    # The best by far is number 0, which is too old to have children; of the last three, number 2 is the best.
    parents = set()
    for seed in range(50):
        asked = proposal(SPACE, aged([-100.0, 5.0, 1.0, 2.0]), seed)
        nas.Evolution(population=3, sample=3).propose(asked)
        parents.add(asked.notes["parent"])
    assert parents == {2}


def test_a_small_sample_lets_worse_ones_be_parents_too() -> None:
    parents: Counter[int] = Counter()
    for seed in range(300):
        asked = proposal(SPACE, aged([0.0, 1.0, 2.0]), seed)
        nas.Evolution(population=3, sample=2).propose(asked)
        parents[asked.notes["parent"]] += 1
    # Of the three pairs, number 0 wins two and number 1 one; number 2 wins none.
    assert parents[0] / 300 == pytest.approx(2 / 3, abs=0.08)
    assert parents[2] == 0


def test_with_several_objectives_parents_are_those_that_no_other_of_the_few_dominates() -> None:
    outcomes = [
        Outcome(0, {"x": 0, "y": 0}, (0.0, 5.0)),
        Outcome(1, {"x": 1, "y": 0}, (5.0, 0.0)),
        Outcome(2, {"x": 2, "y": 0}, (6.0, 6.0)),
    ]
    parents = set()
    for seed in range(50):
        asked = proposal(SPACE, outcomes, seed)
        nas.Evolution(population=3, sample=3).propose(asked)
        parents.add(asked.notes["parent"])
    assert parents == {0, 1}


def test_the_same_history_and_number_give_the_same_child() -> None:
    one, two = (nas.Evolution(3, 2).propose(proposal(SPACE, aged([1.0, 2.0, 3.0]), seed=7)) for _ in range(2))
    assert one == two


def test_a_mutation_draws_decisions_that_come_to_exist_and_drops_those_that_do_not() -> None:
    searched = as_search_space(Net)
    chance = random.Random(0)
    for _ in range(50):
        child = mutated(searched, {"inner": "skip"}, chance)
        assert child["inner"] != "skip"
        assert ("act" in child) == (child["inner"] == "deep")
        back = mutated(searched, {"inner": "deep", "act": "tanh"}, chance)
        assert ("act" in back) == (back["inner"] == "deep")


def test_in_a_search_every_child_is_one_decision_from_its_parent() -> None:
    search = nas.Search(letters(6), vowels, strategy=nas.Evolution(6, 3), trials=40, store="memory")
    trials = search.run()["trials"]
    children = [trial for trial in trials if "parent" in trial]
    assert len(children) == len(trials) - 6
    for child in children:
        assert distance(child["parameters"], trials[child["parent"]]["parameters"]) == 1
        assert 0 < child["number"] - child["parent"] <= 6 + sum(trial["state"] != "complete" for trial in trials)


def test_a_grid_visits_every_combination_once_and_ends() -> None:
    search = nas.Search(letters(3, "abc"), vowels, strategy="grid", trials=1000, store="memory")
    trials = search.run()["trials"]
    assert len(trials) == 27
    assert len({tuple(trial["parameters"].values()) for trial in trials}) == 27


def test_a_grid_is_shuffled_by_the_seed_or_in_order() -> None:
    def order(strategy: Any, seed: int = 0) -> list[Any]:
        search = nas.Search(letters(2, "ab"), vowels, strategy=strategy, seed=seed, store="memory")
        return ["".join(trial["parameters"].values()) for trial in search.run()["trials"]]

    assert order(nas.Grid(shuffle=False)) == ["aa", "ab", "ba", "bb"]
    orders = [order("grid", seed) for seed in range(4)]
    assert all(sorted(one) == ["aa", "ab", "ba", "bb"] for one in orders)
    assert len({tuple(one) for one in orders}) > 1


def test_a_grid_of_a_nested_space_visits_what_exists_once() -> None:
    trials = nas.Search(Net, lambda network: 1.0, strategy="grid", store="memory").run()["trials"]
    found = sorted(str(trial["parameters"]) for trial in trials)
    assert found == sorted(
        map(
            str,
            [
                {"inner": "linear"},
                {"inner": "skip"},
                {"inner": "deep", "act": "tanh"},
                {"inner": "deep", "act": "relu"},
            ],
        )
    )


def test_a_grid_of_a_space_that_nobody_could_list_has_an_order_all_the_same() -> None:
    search = nas.Search(letters(40), vowels, strategy="grid", trials=5, store="memory")
    words = {tuple(trial["parameters"].values()) for trial in search.run()["trials"]}
    assert len(words) == 5


@pytest.mark.parametrize("size", [1, 2, 3, 17, 64])
def test_a_permutation_reaches_every_place_once(size: int) -> None:
    assert sorted(permuted(place, size, seed=1) for place in range(size)) == list(range(size))


def test_random_draws_by_the_weights_of_the_space() -> None:
    search = nas.Search(
        {"x": nas.one_of("a", "b", weights=[9, 1])}, lambda at: 1.0, duplicates="run", trials=200, store="memory"
    )
    found = Counter(trial["parameters"]["x"] for trial in search.run()["trials"])
    assert found["a"] / 200 == pytest.approx(0.9, abs=0.06)


def test_tpe_begins_with_random_draws_and_then_prefers_what_was_good() -> None:
    first = nas.Search(letters(6), vowels, strategy=nas.Tpe(startup=10), trials=10, store="memory").run()
    plain = nas.Search(letters(6), vowels, strategy=Random(), trials=10, store="memory").run()
    assert [trial["parameters"] for trial in first["trials"]] == [trial["parameters"] for trial in plain["trials"]]


def test_any_sampler_of_optuna_is_a_strategy() -> None:
    import optuna

    search = nas.Search(
        {"x": nas.uniform(-2, 2)},
        lambda at: -((at["x"] - 1) ** 2),
        strategy=Sampled(lambda seed: optuna.samplers.TPESampler(seed=seed), startup=5),
        trials=30,
        store="memory",
    )
    assert search.run()["best"]["parameters"]["x"] == pytest.approx(1, abs=0.3)
    plain = nas.Search(
        letters(2), vowels, strategy=lambda seed: optuna.samplers.RandomSampler(seed=seed), trials=3, store="memory"
    )
    assert len(numbers(plain.run())) == 3


def test_a_function_that_makes_no_sampler_is_refused() -> None:
    search = nas.Search(letters(2), vowels, strategy=lambda seed: "x", trials=3, store="memory")
    with pytest.raises(
        ConfigError, match=r"^the strategy returned 'x' for a seed; it must return a sampler of Optuna's$"
    ):
        search.run()


def test_constraints_hold_for_every_strategy() -> None:
    class Bound(Net):
        def __init__(self) -> None:
            super().__init__()
            self.rule = nas.Constraint(lambda found: found["inner"] != "skip", labels=["inner"], reason="no skipping")

    for strategy in ("random", "grid", nas.Tpe(2), nas.Evolution(2, 1), nas.Nsga2(2)):
        trials = nas.Search(Bound, lambda network: 1.0, strategy=strategy, trials=3, store="memory").run()["trials"]
        assert {trial["parameters"]["inner"] for trial in trials} <= {"linear", "deep"}


MISTAKES = [
    (lambda: nas.Evolution(5, 6), r"^Evolution\(population=5, sample=6\) needs 1 <= sample <= population$"),
    (lambda: nas.Tpe(startup=0), r"^startup=0 must be 1 or more$"),
    (lambda: nas.Tpe(candidates=0), r"^candidates=0 must be 1 or more$"),
    (lambda: nas.Nsga2(population=1), r"^Nsga2\(population=1\) needs at least 2$"),
    (
        lambda: nas.Search(letters(), vowels, strategy="evoluton"),
        r"^strategy='evoluton' is unknown; did you mean 'evolution'",
    ),
    (
        lambda: nas.Search(letters(), vowels, strategy=3),
        r"^strategy=3 is unknown; it must be one of \['random', 'grid', ",
    ),
    (lambda: nas.Search(letters(), vowels, pruner="medain"), r"^pruner='medain' is unknown; did you mean 'median'\?$"),
    (lambda: nas.Search(letters(), vowels, duplicates="x"), r"^duplicates='x' must be one of \['replay', 'run'\]$"),
    (lambda: nas.Search(letters(), vowels, nonfinite="x"), r"^nonfinite='x' must be one of \['fail', 'prune'\]$"),
    (
        lambda: nas.Search(letters(), vowels, objectives={}),
        r"^objectives={}: there is none; write 'maximize', 'minimize'",
    ),
    (lambda: nas.Search(letters(), vowels, objectives={"a": "up"}), r"'up' is no direction; write 'maximize'"),
    (
        lambda: nas.Search(letters(), vowels, objectives=["a", "a"]),
        r"^objectives=\['a', 'a'\] must be a direction, a list of different names, or names with directions$",
    ),
    (
        lambda: nas.Search(letters(), vowels, objectives=["a", "b"], pruner="median"),
        r"^a pruner compares trials by one number; with several objectives, set pruner=None$",
    ),
    (
        lambda: nas.Search({"x": 1}, vowels),
        r"^there is nothing to decide in the config; put nas.one_of\(...\), nas.uniform",
    ),
    (
        lambda: nas.Search(int, vowels),
        r"^the space is 0; give a model with choices in it, a class or LazyCall that makes",
    ),
    (
        lambda: nas.Search(letters(), 3),
        r"^the trainer is 3; give a registered trainer, a LazyCall of one, or a function",
    ),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES)
def test_what_cannot_be_meant_is_refused_before_anything_runs(mistake: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mistake()


def test_a_store_that_is_none_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^store=3 must be the path of a journal, the URL of a database, or 'memory'$"
    ):
        nas.Search(letters(), vowels, store=3).run()  # type: ignore[arg-type]
