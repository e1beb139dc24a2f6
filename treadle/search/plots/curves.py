"""The intermediate results of all trials, one line each."""

import math
from typing import Any

from treadle.search.plots.axes import COLORS, FRONT, Frame, Scale, axis_name, legend, objective_name, trial_tooltip

MOST = 200
"""How many trials are drawn: of more, the newest, and the best."""


def curve_lines(results: dict[str, Any]) -> str:
    """Draw what each trial reported before its end, step by step, as SVG; the best trial is thick.

    Args:
        results: What `Search.results()` returns.
    """
    name = objective_name(results, None)
    best = results["best"]["number"] if results["best"] else None
    curves = {trial["number"]: points for trial in results["trials"] if (points := _points(trial))}
    shown = sorted(curves)[-MOST:]
    shown += [best] if best in curves and best not in shown else []
    steps = [step for number in shown for step, _ in curves[number]]
    values = [value for number in shown for _, value in curves[number]]
    frame = Frame(
        f"{results['name']}: intermediate results", Scale(steps), Scale(values), ("step", axis_name(results, name))
    )
    for number in sorted(shown, key=lambda one: one == best):
        trial = results["trials"][number]
        points = [frame.at(step, value) for step, value in curves[number]]
        color = FRONT if number == best else COLORS.get(trial["state"], COLORS["complete"])
        frame.canvas.line(points, color, width=2.5 if number == best else 1.0, title=trial_tooltip(trial))
        # Where a trial stopped; one with a single report is this mark alone.
        frame.canvas.circle(points[-1], color, radius=2.5, title=trial_tooltip(trial))
    states = {results["trials"][number]["state"] for number in shown}
    marks = [("line", FRONT, "the best")] if best in curves else []
    legend(frame.canvas, [*marks, *(("line", color, state) for state, color in COLORS.items() if state in states)])
    return frame.canvas.svg()


def _points(trial: dict[str, Any]) -> list[tuple[float, float]]:
    return [(step, value) for step, value in trial["curve"] or () if math.isfinite(value)]


def has_curves(results: dict[str, Any]) -> bool:
    """Whether any trial reported more than once, so that there is a line to draw."""
    return any(len(_points(trial)) > 1 for trial in results["trials"])
