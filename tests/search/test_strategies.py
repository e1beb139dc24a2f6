"""Strategies: what they propose, from what they know, and from nothing else."""

import random
from collections import Counter
from typing import Any

import pytest

from tests.search.support import Net, letters, numbers, vowels
from treadle import nas, search
from treadle.errors import ConfigError
from treadle.nas.classic.network_space import as_search_space
from treadle.search import Random, Sampled
from treadle.search.space.base import Searched
from treadle.search.space.domains import Range
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


def hill(setting: dict[str, Any]) -> float:
    """Return how near a setting is to the top of a hill, which is at x=2 and y='b'."""
    return -((setting["x"] - 2) ** 2) - (setting["y"] != "b")


HILL: dict[str, Any] = {"x": nas.uniform(-5, 5), "y": nas.one_of("a", "b", "c")}


@pytest.mark.parametrize("strategy", [search.Surrogate(startup=8), search.Gp(startup=8), "qmc", search.Nsga3(6)])
def test_a_strategy_finds_the_top_of_a_hill_better_than_chance_and_the_same_way_each_time(strategy: Any) -> None:
    def found() -> Any:
        return search.Search(HILL, hill, strategy=strategy, trials=20, store="memory").run()

    results = found()
    chance = search.Search(HILL, hill, trials=20, store="memory").run()
    is_model = getattr(strategy, "name", strategy) in ("surrogate", "gp")
    assert results["best"]["values"]["default"] > (-0.05 if is_model else chance["best"]["values"]["default"] - 1)
    assert [one["parameters"] for one in found()["trials"]] == [one["parameters"] for one in results["trials"]]


def test_a_surrogate_weighs_several_objectives_and_covers_more_of_them_than_chance() -> None:
    space = {f"x{place}": nas.uniform(0, 1) for place in range(4)}

    def two(setting: dict[str, float]) -> dict[str, float]:
        rest = sum(setting[f"x{place}"] for place in range(1, 4))
        return {"a": setting["x0"] + rest, "b": 1 - setting["x0"] + rest}

    def covered(strategy: Any) -> float:
        objectives = {"a": "minimize", "b": "minimize"}
        made = search.Search(space, two, strategy=strategy, objectives=objectives, trials=30, store="memory")
        return search.hypervolume(made.run(), {"a": 4.0, "b": 4.0})

    assert covered(search.Surrogate(startup=10)) > covered("random")


NESTED: dict[str, Any] = {
    "optim": nas.one_of(
        {"kind": "sgd", "momentum": nas.uniform(0, 1)}, {"kind": "adam", "beta": nas.one_of(1, 2)}, "no"
    )
}


def test_a_choice_of_mappings_has_decisions_that_exist_where_it_was_made() -> None:
    seen: list[Any] = []

    def judge(setting: dict[str, Any]) -> float:
        seen.append(setting["optim"])
        return 0.0

    results = search.Search(NESTED, judge, trials=20, duplicates="run", store="memory").run()
    for trial, given in zip(results["trials"], seen, strict=True):
        taken = trial["parameters"]
        expected: Any = {
            "sgd": {"kind": "sgd", "momentum": taken.get("optim.sgd.momentum")},
            "adam": {"kind": "adam", "beta": taken.get("optim.adam.beta")},
            "no": "no",
        }[taken["optim"]]
        assert given == expected
        assert len(taken) == (1 if taken["optim"] == "no" else 2)
    assert {trial["parameters"]["optim"] for trial in results["trials"]} == {"sgd", "adam", "no"}
    assert isinstance(NESTED["optim"].values[0]["momentum"], Range)  # the space is as it was


def test_values_that_are_called_alike_are_called_by_their_place() -> None:
    space = {"x": nas.one_of({"kind": "a", "y": nas.uniform(0, 1)}, {"kind": "a", "z": nas.uniform(2, 3)}, 7)}
    found = search.Search(space, lambda at: 0.0, strategy=search.Grid(shuffle=False), store="memory").run()["trials"]
    assert {tuple(one["parameters"]) for one in found} == {("x", "x.0.y"), ("x", "x.1.z"), ("x",)}


@pytest.mark.parametrize("strategy", ["grid", nas.Tpe(4), nas.Evolution(4, 2), search.Surrogate(4), search.Gp(4)])
def test_every_strategy_searches_choices_of_mappings(strategy: Any) -> None:
    def judge(setting: dict[str, Any]) -> float:
        return float(setting["optim"]["momentum"]) if "momentum" in setting["optim"] else -1.0

    best = search.Search(NESTED, judge, strategy=strategy, trials=20, store="memory").run()["best"]
    assert best["parameters"]["optim"] == "sgd"


def test_settings_to_try_first_come_first_and_are_completed_at_random() -> None:
    first: list[dict[str, Any]] = [{"x": 1.5, "y": "c"}, {"y": "b"}]
    options: dict[str, Any] = {"first": first, "trials": 5, "store": "memory"}
    trials = search.Search(HILL, hill, **options).run()["trials"]
    assert trials[0]["parameters"] == {"x": 1.5, "y": "c"}
    assert trials[1]["parameters"]["y"] == "b"
    again = search.Search(HILL, hill, **options).run()["trials"]
    assert [one["parameters"] for one in again] == [one["parameters"] for one in trials]


def test_a_search_without_progress_ends() -> None:
    values = iter([3.0, 5.0, 4.0, 6.0, 1.0, 6.0, 2.0, 9.0])
    made = search.Search({"x": nas.uniform(0, 1)}, lambda at: next(values), patience=3, trials=8, store="memory")
    assert len(made.run()["trials"]) == 7  # three in a row are not above 6


def test_trials_above_a_limit_are_never_the_best_and_strategies_avoid_them() -> None:
    def judge(setting: dict[str, float]) -> dict[str, float]:
        return {"default": setting["x"], "cost": 2 * setting["x"]}

    space = {"x": nas.uniform(0, 1)}
    plain = search.Search(space, judge, limits={"cost": 1.0}, trials=30, store="memory").run()
    assert plain["best"]["parameters"]["x"] <= 0.5 < max(one["parameters"]["x"] for one in plain["trials"])
    assert [one["feasible"] for one in plain["trials"]] == [one["parameters"]["x"] <= 0.5 for one in plain["trials"]]
    learned = search.Search(space, judge, limits={"cost": 1.0}, strategy=nas.Tpe(8), trials=30, store="memory").run()
    assert plain["best"]["values"]["default"] < learned["best"]["values"]["default"] <= 0.5


def test_a_metric_with_a_limit_that_nobody_reports_fails_the_trial() -> None:
    made = search.Search(HILL, hill, limits={"cost": 1.0}, trials=1, store="memory", max_failures=None).run()
    assert made["trials"][0]["error"]["message"] == (
        "limits= has 'cost', and the final result only ['default']; report it too"
    )


def test_an_earlier_search_is_what_a_new_one_begins_with(tmp_path: Any) -> None:
    earlier = search.Search(HILL, hill, trials=12, store="memory", name="before").run()
    wider = {**HILL, "x": nas.uniform(-2, 9)}
    fits = [one for one in earlier["trials"] if one["parameters"]["x"] >= -2]
    options: dict[str, Any] = {"strategy": search.Surrogate(startup=4), "trials": 3, "warm_start": [earlier]}
    results = search.Search(wider, hill, run_dir=tmp_path / "s", **options).run()
    known = [one for one in results["trials"] if "from_search" in one]
    assert [one["from_search"] for one in known] == [f"before:{one['number']}" for one in fits]
    assert [one["values"] for one in known] == [one["values"] for one in fits]
    assert len(results["trials"]) == len(known) + 3
    again = search.Search(wider, hill, run_dir=tmp_path / "s", **options).run()
    assert again == results  # known once, and not again


def test_importance_is_the_share_of_what_a_decision_explains() -> None:
    def judge(setting: dict[str, Any]) -> float:
        return 3 * setting["a"] + setting["b"]

    space = {"a": nas.uniform(0, 1), "b": nas.uniform(0, 1), "c": nas.one_of(1, 2, 3)}
    made = search.Search(space, judge, trials=200, store="memory")
    made.run()
    found = made.importance()
    assert list(found)[:2] == ["a", "b"]
    assert found["a"] == pytest.approx(0.9, abs=0.05)  # 9 parts of 10 of the variance
    assert found["c"] < 0.03


def test_a_hypervolume_is_that_of_the_boxes_under_a_front() -> None:
    objectives = {"a": "minimize", "b": "minimize", "c": "minimize"}
    trials = [{"values": dict(zip("abc", one, strict=True))} for one in [(1, 2, 2), (2, 1, 2), (2, 2, 1), (3, 3, 3)]]
    # Of the cube from 1 to 3, each of the first three has 4 (2 by 2 by 1, 1 by ... ), counted by its unit cells.
    corners = [(x, y, z) for x in (1, 2) for y in (1, 2) for z in (1, 2)]
    cells = sum(
        any(all(p <= q for p, q in zip(one["values"].values(), c, strict=True)) for one in trials) for c in corners
    )
    assert search.hypervolume({"objectives": objectives, "trials": trials}, {"a": 3, "b": 3, "c": 3}) == cells


MORE_MISTAKES: list[tuple[Any, str]] = [
    (lambda: search.Surrogate(1), r"^Surrogate\(startup=1, pool=200\): both must be 2 or more$"),
    (
        lambda: search.Search(HILL, hill, first=[{"z": 1}]),
        r"^first= has 'z', which nothing decides; there is \['x",
    ),
    (
        lambda: search.Search(HILL, hill, first=[{"y": "d"}]),
        r"^first= has y='d', which is none of its val",
    ),
    (
        lambda: search.Search(HILL, hill, limits={"a": "b"}),
        r"^limits=\{'a': 'b'\} must be the largest value by ",
    ),
    (lambda: search.Search(HILL, hill, limits=3), r"^limits=3 must be the largest value by the name of a metric"),  # type: ignore[arg-type]
    (lambda: search.Search(HILL, hill, patience=0), r"^patience=0 must be a whole number from 1 up$"),
    (
        lambda: search.Search(HILL, hill, warm_start="x"),
        r"^warm_start='x' must be a list of folders, results or",
    ),
    (
        lambda: search.Search(HILL, hill, warm_start=["x"]),
        r"^warm_start has 'x', which is no search, no results of",
    ),
    (
        lambda: search.Search(HILL, hill, limits={"a": 1}, promotion="asha(1, 9)"),
        r"^limits= are judged by complete trials, and promotion= compares others: give one of them$",
    ),
    (lambda: search.hypervolume({"objectives": {"a": "max"}}, {}), r"^hypervolume: the reference has no 'a', which is"),
    (
        lambda: search.importance({"objectives": {"a": "max"}, "trials": []}, "b"),
        r"^importance of 'b': the search has the objectives \['a'\]$",
    ),
]


@pytest.mark.parametrize(("mistake", "message"), MORE_MISTAKES)
def test_what_a_search_cannot_be_told_is_refused(mistake: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mistake()


def test_importance_of_a_few_trials_is_refused() -> None:
    with pytest.raises(nas.SearchError, match=r"^importance needs four complete trials or more, and there are 0$"):
        search.Search(HILL, hill, store="memory").importance()
