"""Two objectives against each other, and the trials that no other is better than."""

from typing import Any

from treadle.errors import ConfigError
from treadle.search.plots.axes import COLORS, FRONT, Frame, Scale, axis_name, legend, objective_name, trial_tooltip
from treadle.search.plots.svg import Point
from treadle.search.store.history import front


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
    signs = [-1 if results["objectives"][name].startswith("max") else 1 for name in names]
    best = front({number: (signs[0] * x, signs[1] * y) for number, (x, y) in points.items()})
    _draw_steps(frame, [points[number] for number in best])
    for trial in trials:
        is_best = trial["number"] in best
        frame.canvas.circle(
            frame.at(*points[trial["number"]]),
            FRONT if is_best else COLORS["complete"],
            radius=5 if is_best else 4,
            title=trial_tooltip(trial),
            opacity=0.9 if is_best else 0.35,
        )
    legend(frame.canvas, [("disc", FRONT, "no other is better"), ("disc", COLORS["complete"], "others")])
    return frame.canvas.svg()


def _draw_steps(frame: Frame, best: list[Point]) -> None:
    """Draw the line behind which everything is dominated, from the trial that is best across."""
    way = best[:1]
    for x, y in best[1:]:
        way += [(x, way[-1][1]), (x, y)]
    if len(way) > 1:
        frame.canvas.line([frame.at(x, y) for x, y in way], FRONT, width=1.5, dash="4 3")
