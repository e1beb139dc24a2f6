"""The epochs of a run as a table and a chart, for the cell of a notebook."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from treadle.console.lines import in_order, number, short

MOST_ROWS = 30
"""How many epochs are shown; those before them are counted."""
WIDTH, HEIGHT, MARGIN = 420, 140, 8
CURVES = (
    (("train_loss_epoch", "total_loss"), "#4c78a8"),
    (("eval_loss_epoch", "evaluation_loss"), "#f58518"),
)
"""What the chart draws, under the names that doors have for it, and in which colour: told apart on any page."""


class EpochTable:
    """A row for each epoch or evaluation, and a chart of the losses from the second value on."""

    def __init__(self) -> None:
        self._rows: list[tuple[dict[str, Any], bool]] = []

    def add_row(self, what: str, spent: str, metrics: Mapping[str, Any], *, best: bool) -> None:
        """Add an epoch.

        Args:
            what: What it is.
            spent: How long it took.
            metrics: What was recorded, by name.
            best: Whether it is the best so far.
        """
        self._rows.append(({"": what, "time": spent, **metrics}, best))

    def html(self) -> str:
        """Return the table and the chart; nothing while there is no row."""
        if not self._rows:
            return ""
        names = in_order({name for row, _ in self._rows for name in row} - {"", "time"})
        cells = [
            [row[""] + (" *best" if best else ""), row["time"], *(_cell(row.get(name)) for name in names)]
            for row, best in self._rows[-MOST_ROWS:]
        ]
        hidden = len(self._rows) - len(cells)
        above = f"{hidden} earlier rows are not shown" if hidden else ""
        from treadle.runs.html_table import html_table

        return self.chart() + html_table(["", "time", *map(short, names)], cells, above)

    def chart(self) -> str:
        """Return the losses as curves over the rows; nothing while there is none of two values."""
        known = {name for row, _ in self._rows for name in row}
        chosen = [(next((one for one in names if one in known), names[0]), colour) for names, colour in CURVES]
        curves = {name: self._points(name) for name, _ in chosen}
        values = [value for points in curves.values() for _, value in points]
        if max(map(len, curves.values())) < 2:
            return ""
        low, high = min(values), max(values)
        drawn = [
            _curve(curves[name], (len(self._rows) - 1, low, high), short(name), colour, place)
            for place, (name, colour) in enumerate(chosen)
            if curves[name]
        ]
        edges = "".join(
            f'<text x="{WIDTH}" y="{y}" font-size="11" text-anchor="end" fill="currentColor">{escape(number(value))}'
            "</text>"
            for y, value in ((10, high), (HEIGHT - 1, low))
        )
        size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        return f'<svg {size} role="img" aria-label="losses by epoch">{"".join(drawn)}{edges}</svg>'

    def _points(self, name: str) -> list[tuple[int, float]]:
        values = [(place, row.get(name)) for place, (row, _) in enumerate(self._rows)]
        return [(place, value) for place, value in values if isinstance(value, float) and math.isfinite(value)]


def table_of(callbacks: Iterable[Any]) -> EpochTable | None:
    """Return the table that one of these callbacks shows in a notebook; None if none does."""
    tables = (getattr(one, "table", None) for one in callbacks)
    return next((one for one in tables if isinstance(one, EpochTable)), None)


def _cell(value: Any) -> Any:
    return None if value is None else number(value)


def _curve(
    points: Sequence[tuple[int, float]], span: tuple[int, float, float], name: str, colour: str, place: int
) -> str:
    last, low, high = span
    wide, tall = WIDTH - 60 - 2 * MARGIN, HEIGHT - 20 - 2 * MARGIN
    spots = " ".join(
        f"{MARGIN + wide * x / max(last, 1):.1f},{20 + MARGIN + tall * (high - y) / ((high - low) or 1.0):.1f}"
        for x, y in points
    )
    label = f'<text x="{MARGIN + 60 * place}" y="12" font-size="12" fill="{colour}">{escape(name)}</text>'
    return f'{label}<polyline points="{spots}" fill="none" stroke="{colour}" stroke-width="2"/>'
