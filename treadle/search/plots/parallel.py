"""What was decided in each trial, and what came of it, as one line through all axes."""

from typing import Any

from treadle.search.plots.axes import (
    ABSENT,
    FRONT,
    CategoryScale,
    Scale,
    axis_name,
    format_value,
    legend,
    objective_name,
    trial_tooltip,
)
from treadle.search.plots.svg import FAINT, Canvas, Point

DISTANCE, LEFT, RIGHT, TOP, HEIGHT, BOTTOM = 132.0, 110.0, 120.0, 104.0, 460.0, 40.0
WORST, BEST = (214, 222, 230), (11, 79, 158)
TICKS = 14
"""How many values of a decision are named at its axis; of more, only every so many."""


def parallel_coordinates(results: dict[str, Any], objective: str | None = None) -> str:
    """Draw each complete trial as a line through the values of its decisions to its result, as SVG.

    The better a trial, the darker its line; the best one is thick. A decision that a trial did not have to make is at
    "not there".

    Args:
        results: What `Search.results()` returns.
        objective: The objective of the last axis, and of the colors; None is the first.

    Raises:
        ConfigError: There is no such objective.
    """
    name = objective_name(results, objective)
    trials = [trial for trial in results["trials"] if trial["values"] is not None]
    axes: list[tuple[str, Scale | CategoryScale]] = [
        (label, _scale(described, [trial["parameters"].get(label, ABSENT) for trial in trials]))
        for label, described in results["space"].items()
    ]
    axes.append((axis_name(results, name), Scale([trial["values"][name] for trial in trials])))
    canvas = Canvas(f"{results['name']}: what was decided", LEFT + RIGHT + DISTANCE * (len(axes) - 1), HEIGHT)
    is_max = results["objectives"][name].startswith("max")
    ranked = sorted(trials, key=lambda trial: trial["values"][name], reverse=not is_max)
    for place, trial in enumerate(ranked):
        values = [trial["parameters"].get(label, ABSENT) for label, _ in axes[:-1]] + [trial["values"][name]]
        points = [_point(at, axis.place(value)) for at, ((_, axis), value) in enumerate(zip(axes, values, strict=True))]
        is_best = place == len(ranked) - 1
        color = FRONT if is_best else _blend_color(place / max(1, len(ranked) - 1))
        canvas.line(points, color, width=3 if is_best else 1.2, title=trial_tooltip(trial))
    for at, (label, axis) in enumerate(axes):
        _draw_axis(canvas, at, label, axis)
    legend(canvas, [("line", FRONT, "the best"), ("line", _blend_color(1), "good"), ("line", _blend_color(0), "bad")])
    return canvas.svg()


def _scale(described: Any, values: list[Any]) -> Scale | CategoryScale:
    """Return the scale of a decision: its range, or the list of its values."""
    if "range" in described and ABSENT not in values:
        return Scale(described["range"], log=described["log"])
    texts = [format_value(value) for value in values]
    listed = [format_value(name) for name in described.get("choice", [])]
    if not set(texts) <= {*listed, ABSENT}:  # a store has other words for lists and mappings than a reader
        listed = sorted(set(texts) - {ABSENT})
    return CategoryScale([ABSENT, *listed] if ABSENT in values or not listed else listed)


def _point(at: int, place: float) -> Point:
    return LEFT + DISTANCE * at, HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM)


def _draw_axis(canvas: Canvas, at: int, label: str, axis: Scale | CategoryScale) -> None:
    canvas.line([_point(at, 0), _point(at, 1)], FAINT)
    x, top = _point(at, 1)
    # Neighbours write at different heights: the names of decisions are longer than the distance of axes.
    canvas.text((x, top - (12 if at % 2 else 26)), label, anchor="middle", bold=True, within=196, title=label)
    ticks = axis.ticks()
    every = -(-len(ticks) // TICKS)
    for place, text in ticks[::every]:
        _, y = _point(at, place)
        canvas.line([(x - 4, y), (x, y)], FAINT)
        canvas.text((x - 7, y + 4), text, anchor="end", color=FAINT, size=11, within=96, title=text, halo=True)


def _blend_color(part: float) -> str:
    red, green, blue = (round(low + part * (high - low)) for low, high in zip(WORST, BEST, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"
