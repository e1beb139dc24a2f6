"""The frame of a drawing with two axes."""

from typing import Any

from treadle.errors import ConfigError, did_you_mean
from treadle.search.plots.canvas import FAINT, GRID, Canvas, Point
from treadle.search.plots.scales import Scale, key_text

WIDTH, HEIGHT = 720.0, 420.0
LEFT, RIGHT, TOP, BOTTOM = 72.0, 24.0, 64.0, 56.0


class Frame:
    """Two axes with their lines, round numbers and names.

    Args:
        title: What stands above.
        across: The scale of the lower axis.
        up: That of the left one.
        names: Of the two.
    """

    def __init__(self, title: str, across: Scale, up: Scale, names: tuple[str, str]) -> None:
        self.canvas = Canvas(WIDTH, HEIGHT, title)
        self._across, self._up = across, up
        self._draw(names)

    def at(self, x: float, y: float) -> Point:
        """Return the point of two values."""
        return self._point(self._across.place(x), self._up.place(y))

    def _point(self, x: float, y: float) -> Point:
        # A little room, so that no mark lies on the edge.
        return LEFT + (0.02 + 0.96 * x) * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - (0.04 + 0.92 * y) * _span()

    def _draw(self, names: tuple[str, str]) -> None:
        for place, text in self._up.ticks():
            _, y = self._point(0, place)
            self.canvas.line([(LEFT, y), (WIDTH - RIGHT, y)], GRID)
            self.canvas.text((LEFT - 8, y + 4), text, anchor="end", color=FAINT)
        for place, text in self._across.ticks():
            x, _ = self._point(place, 0)
            self.canvas.line([(x, HEIGHT - BOTTOM), (x, HEIGHT - BOTTOM + 4)], FAINT)
            self.canvas.text((x, HEIGHT - BOTTOM + 18), text, anchor="middle", color=FAINT)
        self.canvas.line([(LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM)], FAINT)
        self.canvas.text(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14), names[0], anchor="middle")
        self.canvas.text((18, (TOP + HEIGHT - BOTTOM) / 2), names[1], anchor="middle", turn=-90)

    @property
    def bottom(self) -> float:
        """Where the lower axis is."""
        return HEIGHT - BOTTOM


def _span() -> float:
    return HEIGHT - TOP - BOTTOM


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


def told(trial: dict[str, Any]) -> str:
    """Return what is shown of a trial where the pointer rests on it."""
    lines = [f"trial {trial['number']}: {trial['state']}"]
    lines += [f"{name}: {value:.6g}" for name, value in (trial["values"] or {}).items()]
    lines += [f"{name} = {key_text(value)}" for name, value in trial["parameters"].items()]
    if trial.get("error"):
        lines.append(f"{trial['error'].get('kind')}: {trial['error'].get('message')}")
    return "\n".join(lines)
