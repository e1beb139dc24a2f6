"""How much each decision matters, as bars."""

from typing import Any

from treadle.search.importance import importance
from treadle.search.plots.axes import objective_name
from treadle.search.plots.svg import FAINT, GRID, Canvas, color_at

NAMES, LENGTH, ROW, TOP = 190.0, 440.0, 26.0, 62.0
MOST = 20
"""How many decisions are drawn, those that matter most."""


def importance_bars(results: dict[str, Any], objective: str | None = None) -> str:
    """Draw how much each decision matters for an objective, as SVG.

    Args:
        results: What `Search.results()` returns.
        objective: Which objective; None is the first.

    Raises:
        ConfigError: There is no such objective.
        SearchError: There are too few trials to tell.
    """
    name = objective_name(results, objective)
    found = list(importance(results, name).items())[:MOST]
    canvas = Canvas(
        f"{results['name']}: what matters for {'the result' if name == 'default' else name}",
        NAMES + LENGTH + 76,
        TOP + ROW * len(found) + 20,
    )
    for part in (0.25, 0.5, 0.75, 1.0):
        x = NAMES + part * LENGTH
        canvas.line([(x, TOP - 6), (x, TOP + ROW * len(found))], GRID)
        canvas.text((x, TOP - 10), f"{part:.0%}", anchor="middle", color=FAINT, size=11)
    for place, (label, share) in enumerate(found):
        y = TOP + ROW * place
        canvas.text((NAMES - 10, y + 15), label, anchor="end", within=NAMES - 20, title=label)
        if share > 0:
            canvas.box((NAMES, y + 3), max(2.0, share * LENGTH), ROW - 9, fill=color_at(0), edge=color_at(0))
        canvas.text((NAMES + share * LENGTH + 8, y + 15), f"{share:.1%}", color=FAINT)
    return canvas.svg()
