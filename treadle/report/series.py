"""The curves of a run: one for each metric, thinned to what a screen can show."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from treadle.events.names import TIME, WALL_TIME
from treadle.run_reading import Run, Start

MOST_POINTS = 1000
"""Points of one curve on a page: more than its pixels; all of them are in metrics.jsonl."""
EARLIEST = 1e9
"""Seconds since 1970 of a moment before any run; less is a duration."""
POSITION = ("step", "epoch", WALL_TIME)
"""What a line of metrics says of where it stands."""


class Point(NamedTuple):
    """A value on a curve; one that is no finite number is None, and leaves a gap."""

    step: int
    seconds: float
    value: float | None


def series_of(run: Run, most: int = MOST_POINTS) -> dict[str, dict[str, list[Any]]]:
    """Return the curves of a run by the name of their metric, each as lists of steps, seconds and values."""
    curves: dict[str, list[Point]] = {}
    for row, seconds in zip(run.rows, training_seconds(run.rows, run.starts), strict=True):
        # Files of earlier versions have one name for the moment of a line and, in the engine's, for the time of a step.
        position = POSITION if WALL_TIME in row else (*POSITION, TIME)
        for name, value in row.items():
            if name not in position and (isinstance(value, (int, float)) or value in ("nan", "inf", "-inf")):
                number = float(value)
                curves.setdefault(name, []).append(
                    Point(int(row.get("step", 0)), seconds, number if math.isfinite(number) else None)
                )
    return {name: _columns(thinned(points, most)) for name, points in sorted(curves.items())}


def _columns(points: list[Point]) -> dict[str, list[Any]]:
    return {
        "step": [point.step for point in points],
        "seconds": [round(point.seconds, 3) for point in points],
        "value": [None if point.value is None else float(f"{point.value:.6g}") for point in points],
    }


def training_seconds(rows: list[dict[str, Any]], starts: Iterable[Start]) -> list[float]:
    """Return when each row was written, in seconds of training: the time between two starts does not count.

    >>> rows = [{"step": 1, "wall_time": 10.0, "time": 0.5}, {"step": 2, "wall_time": 110.0, "time": 0.5}]
    >>> training_seconds(rows, [Start(0, 5.0), Start(1, 100.0)])
    [5.0, 15.0]

    Files of earlier versions say `time` for it. The engine's have the seconds of a step there, which add up.

    >>> training_seconds([{"step": 0, "time": 2e9}, {"step": 2, "time": 0.5}, {"step": 4, "time": 1.0}], [])
    [0.0, 1.0, 3.0]
    >>> training_seconds([{"step": 0, "time": 10.0}, {"step": 1, "time": 101.0}], [Start(0, 5.0), Start(1, 100.0)])
    [5.0, 6.0]
    """
    pending = [start for start in starts if start.time is not None]
    begun = pending.pop(0).time if pending else None
    moments = _moments(rows)
    origin = (moments[0] or 0.0) if begun is None and rows else begun or 0.0
    idle, before, last, found = 0.0, origin, 0, []
    for row, moment in zip(rows, moments, strict=True):
        time, step = before if moment is None else moment, int(row.get("step", 0))
        if WALL_TIME not in row and time < min(origin, EARLIEST):
            time = before + time * max(0, step - last)
        last = step
        while pending and pending[0].step <= step and (pending[0].time or 0.0) <= time:
            idle += max(0.0, (pending[0].time or 0.0) - before)
            before = max(before, pending.pop(0).time or 0.0)
        before = max(before, time)
        found.append(max(0.0, time - origin - idle))
    return found


def _moments(rows: list[dict[str, Any]]) -> list[float | None]:
    """Return when each row was, as far as it says so.

    Rows of several steps are written together, at the end of the last: where they know how long a step took, each is
    that long before the next.

    >>> _moments([{"wall_time": 9.0}, {"wall_time": 20.0}, {"wall_time": 20.0, "time": 2.0}])
    [9.0, 18.0, 20.0]
    """
    found: list[float | None] = []
    after: float | None = None
    for row in reversed(rows):
        if WALL_TIME not in row:
            found.append(float(row[TIME]) if TIME in row else None)
            continue
        moment = float(row[WALL_TIME])
        moment = moment if after is None else min(moment, after)
        found.append(moment)
        taken = row.get(TIME)
        # A metric of the user's may have that name, and be anything.
        after = moment - (taken if isinstance(taken, (int, float)) and 0 <= taken < EARLIEST else 0.0)
    return found[::-1]


def thinned(points: list[Point], most: int) -> list[Point]:
    """Return at most `most` of the points: the first, the last, and the lowest and highest of each stretch.

    >>> [point.step for point in thinned([Point(step, 0.0, -abs(step - 50)) for step in range(100)], 8)]
    [0, 1, 32, 33, 50, 66, 98, 99]
    """
    if len(points) <= most:
        return points
    stretches = max(1, (most - 2) // 2)
    kept = {0, len(points) - 1}
    inner = len(points) - 2
    for part in range(stretches):
        stretch = range(1 + part * inner // stretches, 1 + (part + 1) * inner // stretches)
        finite = [(points[place].value, place) for place in stretch if points[place].value is not None]
        if finite:
            kept |= {min(finite)[1], max(finite)[1]}
        elif len(stretch):
            kept.add(stretch[0])
    return [points[place] for place in sorted(kept)]
