"""The frame of a drawing with two axes."""

import json
import math
from collections.abc import Sequence
from typing import Any

from treadle.errors import ConfigError, did_you_mean
from treadle.search.plots.svg import FAINT, GRID, Canvas, Point

COLORS = {"complete": "#2f6fb2", "pruned": "#c98500", "failed": "#c0392b", "paused": "#8a5cb0", "running": "#3b8f5c"}
"""The colors of trials by their state."""
FRONT = "#0b7a53"
"""The color of those that no other is better than."""

# From values to places on an axis


ABSENT = "not there"
"""What the axis of a decision calls trials in which it was not to be made."""


class Scale:
    """The numbers between two, evenly or by their logarithm, from 0 to 1.

    Args:
        values: What must fit on it.
        log: Whether by the logarithm.
    """

    def __init__(self, values: Sequence[float], *, log: bool = False) -> None:
        self.log = log and min(values, default=1.0) > 0
        low, high = min(values, default=0.0), max(values, default=1.0)
        if low == high:
            low, high = (low / 2, high * 2) if self.log else (low - 0.5, high + 0.5)
        self.low, self.high = low, high

    def place(self, value: float) -> float:
        """Return where a value lies, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Return round numbers of the range, with their words."""
        found = _powers(self.low, self.high) if self.log else []
        return [(self.place(value), f"{value:.6g}") for value in found or round_numbers(self.low, self.high, most)]


class CategoryScale:
    """Values that have no order but that of their list, at equal distances.

    Args:
        values: All of them.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._places = {format_value(value): place for place, value in enumerate(values)}

    def place(self, value: Any) -> float:
        """Return where a value lies, from 0 to 1."""
        return (self._places[format_value(value)] + 0.5) / len(self._places)

    def ticks(self) -> list[tuple[float, str]]:
        """Return all values with their places."""
        count = len(self._places)
        return [((place + 0.5) / count, text) for text, place in self._places.items()]


def round_numbers(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers at equal distances between two others.

    >>> round_numbers(0.13, 0.97)
    [0.2, 0.4, 0.6, 0.8]
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _powers(low: float, high: float) -> list[float]:
    found = [10.0**power for power in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]
    return found if len(found) > 1 else []


def format_value(value: Any) -> str:
    """Return a value as an axis shows it; text stands without quotes."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


WIDTH, HEIGHT = 720.0, 420.0
LEFT, RIGHT, TOP = 72.0, 24.0, 64.0
BASE = HEIGHT - 56.0
"""Where the lower axis is."""


class Frame:
    """Two axes with their lines, round numbers and names.

    Args:
        title: What stands above.
        across: The scale of the lower axis.
        up: That of the left one.
        names: Of the two.
    """

    def __init__(self, title: str, across: Scale, up: Scale, names: tuple[str, str]) -> None:
        self.canvas = Canvas(title, WIDTH, HEIGHT)
        self._across, self._up = across, up
        self._draw(names)

    def at(self, x: float, y: float) -> Point:
        """Return the point of two values."""
        return self._point(self._across.place(x), self._up.place(y))

    def _point(self, x: float, y: float) -> Point:
        # A little room, so that no mark lies on the edge.
        return LEFT + (0.02 + 0.96 * x) * (WIDTH - LEFT - RIGHT), BASE - (0.04 + 0.92 * y) * (BASE - TOP)

    def _draw(self, names: tuple[str, str]) -> None:
        for place, text in self._up.ticks():
            _, y = self._point(0, place)
            self.canvas.line([(LEFT, y), (WIDTH - RIGHT, y)], GRID)
            self.canvas.text((LEFT - 8, y + 4), text, anchor="end", color=FAINT)
        for place, text in self._across.ticks():
            x, _ = self._point(place, 0)
            self.canvas.line([(x, BASE), (x, BASE + 4)], FAINT)
            self.canvas.text((x, BASE + 18), text, anchor="middle", color=FAINT)
        self.canvas.line([(LEFT, BASE), (WIDTH - RIGHT, BASE)], FAINT)
        self.canvas.text(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14), names[0], anchor="middle")
        self.canvas.text((18, (TOP + BASE) / 2), names[1], anchor="middle", turn=-90)


def legend(canvas: Canvas, entries: list[tuple[str, str, str]]) -> None:
    """Say, below the title, what the marks mean: their shape, color and word."""
    x = 22.0
    for shape, color, word in entries:
        if shape == "line":
            canvas.line([(x - 6, 45), (x + 6, 45)], color, width=2)
        elif shape == "cross":
            canvas.cross((x, 45), color)
        else:
            canvas.circle((x, 45), color, filled=shape == "disc", opacity=0.8)
        canvas.text((x + 11, 49), word, color=FAINT)
        x += 32 + 6.6 * len(word)


def objective_name(results: dict[str, Any], given: str | None, place: int = 0) -> str:
    """Return the name of an objective that a drawing is about.

    Raises:
        ConfigError: The search has none of this name.
    """
    known = list(results["objectives"])
    if given is None:
        return str(known[place])
    if given not in known:
        raise ConfigError(f"the search has no objective {given!r}; it has {known}{did_you_mean(given, known)}")
    return given


def axis_name(results: dict[str, Any], name: str) -> str:
    """Return what stands at the axis of an objective."""
    word = "larger" if results["objectives"][name].startswith("max") else "smaller"
    return f"{'result' if name == 'default' else name} ({word} is better)"


def trial_tooltip(trial: dict[str, Any]) -> str:
    """Return what is shown of a trial where the pointer rests on it."""
    lines = [f"trial {trial['number']}: {trial['state']}"]
    lines += [f"{name}: {value:.6g}" for name, value in (trial["values"] or {}).items()]
    lines += [f"{name} = {format_value(value)}" for name, value in trial["parameters"].items()]
    if trial.get("error"):
        lines.append(f"{trial['error'].get('kind')}: {trial['error'].get('message')}")
    return "\n".join(lines)
