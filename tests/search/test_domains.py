"""Domains and dimensions: what values there are, how they are drawn, changed, counted and stored."""

import random
from collections import Counter
from typing import Any

import pytest

from treadle import nas
from treadle.errors import ConfigError
from treadle.search.space.dimensions import Categorical, Numeric, make_dimension
from treadle.search.space.domains import Range


def drawn(domain: Any, count: int = 400) -> list[Any]:
    chance = random.Random(0)
    dimension = make_dimension("x", domain)
    return [dimension.sample(chance) for _ in range(count)]


def test_a_range_is_drawn_evenly_and_stays_inside() -> None:
    values = drawn(nas.uniform(-1, 3))
    assert all(-1 <= value <= 3 for value in values)
    assert sum(value < 0 for value in values) / len(values) == pytest.approx(0.25, abs=0.06)


def test_a_logarithmic_range_draws_each_order_of_magnitude_alike() -> None:
    values = drawn(nas.log_uniform(1e-4, 1e-2))
    assert all(1e-4 <= value <= 1e-2 for value in values)
    assert sum(value < 1e-3 for value in values) / len(values) == pytest.approx(0.5, abs=0.07)


def test_whole_numbers_and_steps_are_kept() -> None:
    assert set(drawn(nas.integer(2, 8, step=3))) == {2, 5, 8}
    assert set(drawn(nas.integer(1, 3))) == {1, 2, 3}
    assert {round(value, 9) for value in drawn(nas.uniform(0, 0.5, step=0.2))} == {0.0, 0.2, 0.4}
    assert all(isinstance(value, int) for value in drawn(nas.integer(1, 1000, log=True)))


def test_weights_say_how_often_a_value_is_drawn() -> None:
    counts = Counter(drawn(nas.one_of("a", "b", weights=[3, 1]), 2000))
    assert counts["a"] / 2000 == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(
    ("domain", "options"),
    [
        (nas.one_of("a", 2), ["a", 2]),
        (nas.integer(1, 3), [1, 2, 3]),
        (nas.integer(0, 100, step=50), [0, 50, 100]),
        (nas.uniform(0, 1), [0.0, 0.25, 0.5, 0.75, 1.0]),
        (nas.uniform(0, 1, step=0.5), [0.0, 0.5, 1.0]),
        (nas.integer(1, 16, log=True), [1, 2, 4, 8, 16]),
    ],
    ids=str,
)
def test_a_grid_visits(domain: Any, options: list[Any]) -> None:
    assert list(make_dimension("x", domain).options()) == pytest.approx(options) or options[0] == "a"
    assert len(make_dimension("x", domain).options()) == len(options)


def test_a_logarithmic_grid_has_equal_ratios() -> None:
    values = make_dimension("x", nas.log_uniform(1e-4, 1)).options()
    assert list(values) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])


@pytest.mark.parametrize(
    "domain",
    [nas.one_of(1, 2, 3), nas.integer(0, 3), nas.uniform(0, 1), nas.log_uniform(1e-5, 1), nas.uniform(0, 1, step=0.25)],
    ids=str,
)
def test_a_mutation_is_another_value_of_the_domain(domain: Any) -> None:
    dimension, chance = make_dimension("x", domain), random.Random(0)
    value = dimension.sample(chance)
    for _ in range(100):
        changed = dimension.mutate(value, chance)
        assert changed != value
        assert dimension.contains(changed)
        value = changed


@pytest.mark.parametrize("domain", [nas.one_of(1), nas.integer(4, 4), nas.uniform(2.0, 2.0)], ids=str)
def test_a_domain_of_one_value_is_fixed_and_does_not_mutate(domain: Any) -> None:
    dimension = make_dimension("x", domain)
    assert dimension.is_fixed
    assert dimension.mutate(dimension.options()[0], random.Random(0)) == dimension.options()[0]


@pytest.mark.parametrize(
    "values", [["a", "b"], [1, 2.5, None, True], [1, 1.0, True], [[0], [0, 2], []], [{"a": 1}, "x"]], ids=str
)
def test_every_value_comes_back_from_the_store_as_it_was(values: list[Any]) -> None:
    dimension = Categorical("x", values)
    distribution: Any = dimension.distribution()
    for value in values:
        internal = distribution.to_internal_repr(dimension.stored(value))
        again = dimension.restored(distribution.to_external_repr(internal))
        assert (again, type(again)) == (value, type(value))


def test_numbers_come_back_from_the_store_as_they_were() -> None:
    for domain, value in ((nas.log_uniform(1e-4, 1), 0.012345678901234567), (nas.integer(1, 9, step=2), 7)):
        dimension = make_dimension("x", domain)
        distribution: Any = dimension.distribution()
        assert dimension.restored(distribution.to_external_repr(distribution.to_internal_repr(value))) == value


def test_the_last_step_of_a_range_is_the_end_that_optuna_is_told() -> None:
    distribution: Any = Numeric("x", Range(0.0, 0.5, step=0.2)).distribution()
    assert distribution.high == pytest.approx(0.4)


def test_what_is_in_a_range() -> None:
    dimension = Numeric("x", Range(1, 8, whole=True, step=1))
    assert [dimension.contains(value) for value in (1, 8, 0, 9, 2.5, True, "2")] == [True, True, *[False] * 5]


MISTAKES = [
    (lambda: nas.one_of(), r"^one_of\(\) needs at least one value$"),
    (lambda: nas.one_of(1, 2, weights=[1]), r"^weights=\[1.0\] must be 2 numbers from 0 up, not all of them 0$"),
    (lambda: nas.one_of(1, weights=[0]), r"not all of them 0$"),
    (lambda: nas.uniform(2, 1), r"^uniform\(2.0, 1.0\): the first number must be finite and not above the second$"),
    (lambda: nas.uniform(0, float("inf")), r"the first number must be finite"),
    (lambda: nas.uniform(0, 1, step=0), r"^uniform\(0.0, 1.0, step=0.0\): the step must be above 0$"),
    (lambda: nas.log_uniform(0, 1), r"^log_uniform\(0.0, 1.0\): by logarithm, a range begins above 0$"),
    (lambda: nas.integer(1, 2.5), r"^integer\(1, 2.5, step=1\): all three must be whole numbers$"),  # type: ignore[arg-type]
    (lambda: nas.integer(1, 9, 2, log=True), r"^integer\(1, 9, step=2, log=True\): with log the step is 1$"),
    (lambda: Categorical("x", [1, 2, 1]), r"^'x' can be 1 twice; each value stands there once$"),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES)
def test_a_domain_that_cannot_be_meant_is_refused(mistake: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mistake()


def evaluated(space: Any, **options: Any) -> list[dict[str, Any]]:
    """Return what the trials of a search were given."""
    given: list[dict[str, Any]] = []

    def judge(one: dict[str, Any]) -> float:
        given.append(one)
        return 0.0

    nas.Search(space, judge, store="memory", **options).run()
    return given


@pytest.mark.parametrize("strategy", ["grid", "random", "tpe", "evolution"])
def test_a_constraint_of_a_dict_space_is_obeyed_and_is_no_setting(strategy: str) -> None:
    width, depth = nas.ValueChoice([1, 2, 3], label="width"), nas.ValueChoice([1, 2, 3], label="depth")
    space = {"net": {"width": width, "depth": depth, "rules": [nas.Constraint(width * depth <= 3)]}}
    given = evaluated(space, strategy=strategy, trials=8, seed=0)
    assert all(set(one["net"]) == {"width", "depth", "rules"} and one["net"]["rules"] == [] for one in given)
    assert all(one["net"]["width"] * one["net"]["depth"] <= 3 for one in given)
    if strategy == "grid":
        assert len(given) == 5


def test_a_constraint_that_is_a_function_sees_domains_by_their_places() -> None:
    rule = nas.Constraint(lambda taken: taken["a.x"] != taken["y"], labels=["a.x", "y"])
    space = {"a": {"x": nas.one_of(1, 2)}, "y": nas.one_of(1, 2), "rule": rule}
    given = evaluated(space, strategy="grid")
    assert given == [{"a": {"x": 1}, "y": 2}, {"a": {"x": 2}, "y": 1}]


def test_a_constraint_on_a_value_that_a_dict_space_does_not_have_is_refused() -> None:
    space = {"lr": nas.one_of(1, 2), "rule": nas.Constraint(lambda taken: True, labels=["lrr"])}
    with pytest.raises(
        ConfigError, match=r"a Constraint looks at 'lrr', which the space does not decide; did you mean 'lr'"
    ):
        nas.Search(space, lambda one: 0.0, store="memory")
