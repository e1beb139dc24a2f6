"""Two objectives against each other, and the trials that no other is better than."""

from typing import Any

from treadle.errors import ConfigError
from treadle.search.plots.axes import Frame, Scale, axis_name, legend, objective_name, trial_tooltip
from treadle.search.plots.svg import COMPLETE, FRONT
from treadle.search.store.history import dominates


def pareto_plot(results: dict[str, Any], across: str | None = None, up: str | None = None) -> str:
    """Draw two objectives of all complete trials, and their front, as SVG.

    The front is that of the two objectives alone: what is on the front of three need not be on it.

    Args:
        results: What `Search.results()` returns.
        across: The objective of the lower axis; None is the second.
        up: The objective of the left axis; None is the first.

    Raises:
        ConfigError: The search has one objective only, or not the one that is named.
    """
    if len(results["objectives"]) < 2:
        raise ConfigError(
            f"a front needs two objectives, and the search has {list(results['objectives'])}; trial_scatter draws one"
        )
    names = objective_name(results, across, 1), objective_name(results, up, 0)
    trials = [trial for trial in results["trials"] if trial["values"] is not None]
    points = {trial["number"]: (trial["values"][names[0]], trial["values"][names[1]]) for trial in trials}
    frame = Frame(
        f"{results['name']}: front",
        Scale([point[0] for point in points.values()]),
        Scale([point[1] for point in points.values()]),
        (axis_name(results, names[0]), axis_name(results, names[1])),
    )
    best = front(points, [results["objectives"][name].startswith("max") for name in names])
    _draw_steps(frame, [points[number] for number in best], up_first=results["objectives"][names[0]].startswith("max"))
    for trial in trials:
        is_best = trial["number"] in best
        frame.canvas.circle(
            frame.at(*points[trial["number"]]),
            FRONT if is_best else COMPLETE,
            radius=5 if is_best else 4,
            title=trial_tooltip(trial),
            opacity=0.9 if is_best else 0.35,
        )
    legend(frame.canvas, [("disc", FRONT, "no other is better"), ("disc", COMPLETE, "others")])
    return frame.canvas.svg()


def front(points: dict[int, tuple[float, float]], maxima: list[bool]) -> list[int]:
    """Return the numbers of the points that no other dominates, from left to right; of equal ones the first.

    >>> front({0: (1.0, 1.0), 1: (2.0, 0.5), 2: (0.5, 0.5)}, [True, True])
    [0, 1]
    """
    small = {
        number: tuple(-value if is_max else value for value, is_max in zip(point, maxima, strict=True))
        for number, point in points.items()
    }
    first = {values: number for number, values in reversed(small.items())}
    best = [number for values, number in first.items() if not any(dominates(other, values) for other in first)]
    return sorted(best, key=lambda number: points[number])


def _draw_steps(frame: Frame, best: list[tuple[float, float]], *, up_first: bool) -> None:
    """Draw the line behind which everything is dominated."""
    way: list[tuple[float, float]] = []
    for x, y in best:
        if way:
            # Where large is good, what a point dominates lies to its left; else to its right.
            way.append((way[-1][0], y) if up_first else (x, way[-1][1]))
        way.append((x, y))
    if len(way) > 1:
        frame.canvas.line([frame.at(x, y) for x, y in way], FRONT, width=1.5, dash="4 3")
