"""Drawings of a search: every trial is there, at its place, and nothing in them can run or be loaded."""

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.search.support import Judge, Net
from treadle import nas
from treadle.errors import ConfigError
from treadle.search.importance import importance
from treadle.search.plots.axes import CategoryScale, Scale, round_numbers
from treadle.search.plots.curves import curve_lines, has_curves
from treadle.search.plots.importance import importance_bars
from treadle.search.plots.panels import write_panels

SVG = "{http://www.w3.org/2000/svg}"


def trial(number: int, value: Any = None, state: str = "complete", **more: Any) -> dict[str, Any]:
    """Return a trial as `Search.results()` has it."""
    values = value if isinstance(value, dict) or value is None else {"default": value}
    return {"number": number, "state": state, "parameters": {"x": number}, "values": values, "curve": [], **more}


def results(*trials: dict[str, Any], objectives: dict[str, str] | None = None, **space: Any) -> dict[str, Any]:
    """Return results of a search."""
    return {
        "name": "s",
        "objectives": objectives or {"default": "maximize"},
        "space": space or {"x": {"range": [0, 10], "step": None, "log": False}},
        "trials": list(trials),
    }


def shapes(svg: str, name: str) -> list[ElementTree.Element]:
    """Return the shapes of a kind that tell of a trial."""
    return [
        shape for shape in ElementTree.fromstring(svg).iter(f"{SVG}{name}") if shape.find(f"{SVG}title") is not None
    ]


def place(shape: ElementTree.Element) -> tuple[float, float]:
    return float(shape.attrib["cx"]), float(shape.attrib["cy"])


def points(shape: ElementTree.Element) -> list[tuple[float, float]]:
    found = [point.split(",") for point in shape.attrib["points"].split()]
    return [(float(x), float(y)) for x, y in found]


def test_the_scatter_has_a_mark_for_every_trial_at_its_place() -> None:
    drawn = nas.trial_scatter(
        results(
            trial(0, 1.0),
            trial(1, 3.0),
            trial(2, 1.0, replayed_from=0),
            trial(3, state="pruned", curve=[[0, 2.0]]),
            trial(4, state="failed", error={"kind": "ValueError", "message": "no <way>"}),
        )
    )
    first, second, replay, pruned = map(place, shapes(drawn, "circle"))
    assert second[0] - first[0] == pytest.approx(replay[0] - second[0], abs=0.11)
    assert (first[1] - pruned[1], first[1]) == (pytest.approx((first[1] - second[1]) / 2, abs=0.11), replay[1])
    assert [shape.attrib["fill"] == "none" for shape in shapes(drawn, "circle")] == [False, False, True, False]
    (failed,) = shapes(drawn, "path")
    title = failed.find(f"{SVG}title")
    assert title is not None
    assert title.text is not None
    assert title.text.splitlines() == ["trial 4: failed", "x = 4", "ValueError: no <way>"]


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_the_line_of_the_best_so_far_goes_in_the_direction_of_the_search(direction: str) -> None:
    drawn = nas.trial_scatter(results(trial(0, 2.0), trial(1, 1.0), trial(2, 3.0), objectives={"default": direction}))
    lines = list(ElementTree.fromstring(drawn).iter(f"{SVG}polyline"))
    (best,) = [points(line) for line in lines if line.attrib["stroke-width"] == "1.5"]
    levels = [y for _, y in best]
    assert len(set(levels)) == 2
    assert (levels[-1] < levels[0]) == (direction == "maximize")  # y grows downwards


def test_a_trial_that_was_pruned_for_a_report_that_is_no_number_stands_at_the_one_before() -> None:
    drawn = nas.trial_scatter(results(trial(0, 1.0), trial(1, state="pruned", curve=[[0, 1.0], [1, math.nan]])))
    first, pruned = map(place, shapes(drawn, "circle"))
    assert first[1] == pruned[1]
    never = nas.trial_scatter(results(trial(0, state="pruned", curve=[[0, math.nan]])))
    assert not shapes(never, "circle")


def test_a_search_without_a_result_is_drawn_all_the_same() -> None:
    for drawn in (nas.trial_scatter(results()), nas.parallel_coordinates(results(trial(0, state="failed")))):
        assert shapes(drawn, "circle") == []
        assert "result (larger is better)" in drawn


def test_every_trial_is_a_line_through_its_values_and_the_best_is_thick_and_last() -> None:
    space = {
        "lr": {"range": [1e-4, 1e-2], "step": None, "log": True},
        "op": {"choice": ["conv", "pool"]},
    }
    drawn = nas.parallel_coordinates(
        results(
            trial(0, 0.9) | {"parameters": {"lr": 1e-3, "op": "pool"}},
            trial(1, 0.1) | {"parameters": {"lr": 1e-4, "op": "conv"}},
            **space,
        )
    )
    worse, better = shapes(drawn, "polyline")
    (low, conv, bad), (middle, pool, good) = points(worse), points(better)
    bottom, top = low[1], good[1]
    assert middle[1] == pytest.approx((bottom + top) / 2, abs=0.11)  # by the logarithm
    assert (conv[1], pool[1]) == (
        pytest.approx(bottom + 0.25 * (top - bottom), abs=0.11),
        pytest.approx(bottom + 0.75 * (top - bottom), abs=0.11),
    )
    assert bad[1] == bottom
    assert [shape.attrib["stroke-width"] for shape in (worse, better)] == ["1.2", "3"]


def test_a_decision_that_was_not_to_be_made_has_a_place_of_its_own() -> None:
    found = nas.Search(Net, Judge(None, steps=1), strategy=nas.Grid(), store="memory").run()  # type: ignore[arg-type]
    drawn = nas.parallel_coordinates(found)
    assert len(shapes(drawn, "polyline")) == 4
    assert drawn.count(">not there<") == 2  # the tick, and what it says where it is cut short


def test_values_that_are_lists_are_drawn() -> None:
    space = {"betas": nas.one_of([0.9, 0.95], [0.9, 0.999]), "none": nas.one_of(None, True)}
    found = nas.Search(space, lambda taken: 1.0, strategy="grid", store="memory").run()
    drawn = nas.parallel_coordinates(found)
    assert len(shapes(drawn, "polyline")) == 4
    assert "[0.9, 0.95]" in drawn


def test_the_front_are_the_trials_that_no_other_is_better_than() -> None:
    objectives = {"accuracy": "maximize", "cost": "minimize"}
    values = [(0.9, 9.0), (0.5, 1.0), (0.4, 2.0), (0.8, 9.0), (0.7, 4.0)]
    drawn = nas.pareto_plot(
        results(
            *(trial(number, {"accuracy": one, "cost": two}) for number, (one, two) in enumerate(values)),
            objectives=objectives,
        )
    )
    marks = shapes(drawn, "circle")
    assert [shape.attrib["r"] for shape in marks] == ["5", "5", "4", "4", "5"]
    (steps,) = [
        points(shape)
        for shape in ElementTree.fromstring(drawn).iter(f"{SVG}polyline")
        if "stroke-dasharray" in shape.attrib
    ]
    assert [steps[0], steps[2], steps[4]] == [place(marks[1]), place(marks[4]), place(marks[0])]
    # Where small is good on the lower axis, a point dominates what lies to its right.
    assert steps[1] == (steps[2][0], steps[0][1])
    assert "accuracy (larger is better)" in drawn
    assert "cost (smaller is better)" in drawn


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda: nas.pareto_plot(results(trial(0, 1.0))),
            r"^a front needs two objectives, and the search has \['default'\]; trial_scatter draws one$",
        ),
        (
            lambda: nas.trial_scatter(results(objectives={"accuracy": "maximize"}), "acuracy"),
            r"^the search has no objective 'acuracy'; it has \['accuracy'\]; did you mean 'accuracy'\?$",
        ),
    ],
    ids=["one objective", "unknown objective"],
)
def test_what_cannot_be_drawn_is_refused(draw: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draw()


def test_names_from_elsewhere_cannot_break_out_of_a_drawing(tmp_path: Path) -> None:
    nasty = '"><script>alert(1)</script>'
    found = nas.Search({nasty: nas.one_of(nasty, "b")}, lambda taken: 1.0, strategy="grid", store="memory").run()
    for path in write_panels({**found, "name": nasty}, tmp_path):
        text = path.read_text()
        kinds = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(text).iter()}
        assert kinds <= {"svg", "rect", "text", "title", "polyline", "circle", "path"}
        assert not re.search(r"(href|src|url\()", text)


def test_all_drawings_are_written_with_a_front_only_for_several_objectives(tmp_path: Path) -> None:
    drawn = write_panels(results(trial(0, 1.0)), tmp_path)
    assert [path.name for path in drawn] == ["trials.svg", "parallel_coordinates.svg"]
    two = results(trial(0, {"a": 1.0, "b": 2.0}), objectives={"a": "maximize", "b": "minimize"}) | {"pareto": [0]}
    assert write_panels(two, tmp_path)[-1] == tmp_path / "panels" / "pareto_front.svg"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 100, [0, 20, 40, 60, 80, 100]), (0.13, 0.97, [0.2, 0.4, 0.6, 0.8]), (-3, 2, [-3, -2, -1, 0, 1, 2])],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert round_numbers(low, high) == expected


def test_a_logarithmic_axis_has_powers_of_ten() -> None:
    assert [text for _, text in Scale([1e-4, 0.05], log=True).ticks()] == ["0.0001", "0.001", "0.01"]
    assert Scale([1e-4, 1e-2], log=True).place(1e-3) == pytest.approx(0.5)


def test_one_value_lies_in_the_middle() -> None:
    assert (Scale([3.0]).place(3.0), Scale([3.0], log=True).place(3.0)) == (0.5, pytest.approx(0.5))
    assert CategoryScale(["a", "b"]).place("b") == 0.75


def test_the_bars_of_importance_are_as_long_as_their_shares() -> None:
    found = [
        {**trial(4 * x + y, float(10 * x + 8 * y)), "parameters": {"x": x, "y": y, "z": 0}}
        for x in range(4)
        for y in range(4)
    ]
    given = results(*found, x={"choice": [0, 1, 2, 3]}, y={"choice": [0, 1, 2, 3]}, z={"choice": [0]})
    shares = importance(given)
    assert list(shares) == ["x", "y", "z"]
    drawn = importance_bars(given)
    boxes = [box for box in ElementTree.fromstring(drawn).iter(f"{SVG}rect") if box.get("rx")]
    lengths = [float(box.attrib["width"]) for box in boxes]
    assert len(lengths) == 2  # z decides nothing
    assert lengths[0] / lengths[1] == pytest.approx(shares["x"] / shares["y"], rel=0.01)
    assert "<script" not in drawn


def test_the_curves_of_all_trials_are_drawn_and_the_best_is_thick_and_last() -> None:
    given = results(
        trial(0, 3.0, curve=[[0, 1.0], [1, 3.0]]),
        trial(1, state="pruned", curve=[[0, 0.5], [1, math.nan]]),
        trial(2, state="paused", curve=[[0, 2.0], [1, 2.5]]),
        trial(3, 1.0),
    )
    given["best"] = given["trials"][0]
    assert has_curves(given)
    assert not has_curves(results(trial(0, 1.0, curve=[[0, 1.0]])))
    drawn = curve_lines(given)
    lines = shapes(drawn, "polyline")
    assert [line.find(f"{SVG}title").text.splitlines()[0] for line in lines] == [  # type: ignore[union-attr]
        "trial 1: pruned", "trial 2: paused", "trial 0: complete",
    ]  # fmt: skip
    assert lines[-1].attrib["stroke-width"] == "2.5"
    assert len(points(lines[0])) == 1  # what is no number is left out
