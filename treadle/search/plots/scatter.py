"""The results of all trials, in the order they were begun."""

import math
from typing import Any

from treadle.search.plots.axes import BASE, COLORS, Frame, Scale, axis_name, legend, objective_name, trial_tooltip
from treadle.search.plots.svg import INK


def trial_scatter(results: dict[str, Any], objective: str | None = None) -> str:
    """Draw the result of each trial, and the best so far, as SVG.

    A ring is a trial that was known and replayed. A trial without a final result stands at its last report, a failed
    one on the axis.

    Args:
        results: What `Search.results()` returns.
        objective: Which objective; None is the first.

    Raises:
        ConfigError: There is no such objective.
    """
    name = objective_name(results, objective)
    trials = results["trials"]
    heights = {trial["number"]: height for trial in trials if (height := _height(trial, name)) is not None}
    frame = Frame(
        f"{results['name']}: trials",
        Scale([0, max(1, len(trials) - 1)]),
        Scale(list(heights.values())),
        ("trial", axis_name(results, name)),
    )
    _draw_best(frame, trials, name, results["objectives"][name].startswith("max"))
    for trial in trials:
        _draw(frame, trial, heights.get(trial["number"]))
    legend(frame.canvas, _legend(trials))
    return frame.canvas.svg()


def _height(trial: dict[str, Any], name: str) -> float | None:
    if trial["values"] is not None:
        return float(trial["values"][name])
    # A trial may have been pruned because its last report was no number.
    reports = [float(value) for _, value in trial["curve"] or () if math.isfinite(value)]
    return reports[-1] if trial["state"] in ("pruned", "paused", "running") and reports else None


def _draw(frame: Frame, trial: dict[str, Any], height: float | None) -> None:
    number, title = trial["number"], trial_tooltip(trial)
    if trial["state"] == "failed":
        frame.canvas.cross((frame.at(number, 0)[0], BASE), COLORS["failed"], title=title)
    elif height is not None:
        color, is_new = COLORS[trial["state"]], "replayed_from" not in trial
        frame.canvas.circle(frame.at(number, height), color, filled=is_new, title=title, opacity=0.75)


def _draw_best(frame: Frame, trials: list[dict[str, Any]], name: str, is_max: bool) -> None:
    better = max if is_max else min
    best: float | None = None
    way: list[tuple[float, float]] = []
    for trial in trials:
        if trial["values"] is None:
            continue
        value = float(trial["values"][name])
        now = value if best is None else better(best, value)
        if best is not None and now != best:
            way.append(frame.at(trial["number"], best))
        if now != best:
            way.append(frame.at(trial["number"], now))
        best = now
    if best is not None:
        way.append(frame.at(max(1, len(trials) - 1), best))
        frame.canvas.line(way, INK, width=1.5)


def _legend(trials: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    states = {trial["state"] for trial in trials}
    entries = [("disc", COLORS["complete"], "complete")]
    if any("replayed_from" in trial for trial in trials):
        entries.append(("ring", COLORS["complete"], "known before"))
    entries += [("disc", COLORS[state], state) for state in ("pruned", "paused", "running") if state in states]
    if "failed" in states:
        entries.append(("cross", COLORS["failed"], "failed"))
    return [*entries, ("line", INK, "best so far")]
