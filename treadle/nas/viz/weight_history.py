"""How the weights of candidates went in the course of a search."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError, did_you_mean
from treadle.runs.place import require_folder
from treadle.runs.reader import read_lines
from treadle.search.plots.svg import FAINT, GRID, MARGIN, PALETTE, Canvas, color_at

SEARCH_FILE, METRICS_FILE = "search.json", "metrics.jsonl"
WEIGHT = "architecture"
"""What the names of the weights of candidates begin with, among the metrics of a run."""


def weight_metric_name(row: str, candidate: Any) -> str:
    """Return the name of a candidate's weight among the metrics of a run."""
    return f"{WEIGHT}/{row}/{candidate}"


@dataclass(frozen=True)
class WeightHistory:
    """What every candidate weighed after each epoch.

    Attributes:
        trainer: The name of the trainer.
        steps: How many updates had been made.
        rows: By row and candidate, what it weighed at each of these.
    """

    trainer: str
    steps: list[int]
    rows: dict[str, dict[str, list[float]]]


def weights_over_time(run_dir: str | Path) -> WeightHistory:
    """Return how the weights of candidates went in a search, from the folder of its run.

    Args:
        run_dir: The folder; the search need not have ended.

    Raises:
        ConfigError: The folder holds no search, or one without such weights.
    """
    require_folder(run_dir, "a search is read from its folder")
    folder = Path(run_dir)
    missing = [name for name in (SEARCH_FILE, METRICS_FILE) if not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"{folder} is not the folder of a one-shot search: it has no {missing[0]}; pass the run_dir of a trainer "
            "that was fitted"
        )
    search = json.loads((folder / SEARCH_FILE).read_text(encoding="utf-8"))
    records = [(record["step"], record) for record in read_lines(folder / METRICS_FILE)]
    return build_history(search["trainer"], search["rows"], records)


def build_history(
    trainer: str, rows: Mapping[str, Sequence[Any]], records: Sequence[tuple[int, Mapping[str, Any]]]
) -> WeightHistory:
    """Return the history in the metrics of a run.

    Args:
        trainer: The name of the trainer.
        rows: The candidates of each row.
        records: Steps, each with its metrics by name.

    Raises:
        ConfigError: There is no weight in them.
    """
    if not rows:
        raise ConfigError(f"{trainer} learns no weights of candidates; there is nothing to follow")
    first = next(_names(rows))
    own = [(step, record) for step, record in records if first in record]
    if not own:
        raise ConfigError(f"{trainer} has not come to the end of an epoch, after which the weights are recorded")
    found = {
        row: {str(one): [record[weight_metric_name(row, one)] for _, record in own] for one in candidates}
        for row, candidates in rows.items()
    }
    return WeightHistory(trainer, [step for step, _ in own], found)


def _names(rows: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    return (weight_metric_name(row, candidate) for row, candidates in rows.items() for candidate in candidates)


# Drawing how the weights of candidates went: a panel for each row, a line for each candidate


TOP = 64.0
WIDTH, HEIGHT = 230.0, 110.0
LEFT, GAP = 34.0, 26.0
LINE = 14.0


def draw_weights(
    history: WeightHistory | str | Path, *, rows: list[str] | None = None, columns: int = 4, title: str | None = None
) -> str:
    """Return a picture of how the weights of candidates went: the text of an SVG file that needs nothing else.

    Each panel is a row, such as a layer choice or an edge of a cell. Below it stand its candidates, the heaviest at
    the end first, with what they weigh.

    Args:
        history: What `trainer.weights_over_time()` gives, or the folder of the run of a search.
        rows: Which rows to draw; None is all.
        columns: How many panels stand side by side.
        title: What it is called; None names the trainer.

    Raises:
        ConfigError: There are no such rows, or no weights to draw.
    """
    if not isinstance(history, WeightHistory):
        history = weights_over_time(history)
    unknown = [row for row in rows or () if row not in history.rows]
    if unknown:
        raise ConfigError(f"draw_weights: there is no row {unknown[0]!r}{did_you_mean(unknown[0], history.rows)}")
    if columns < 1:
        raise ConfigError(f"draw_weights: columns={columns} must be at least 1")
    drawn = {row: history.rows[row] for row in (history.rows if rows is None else rows)}
    canvas = Canvas(title or f"Weights of candidates, {history.trainer}")
    canvas.text((MARGIN, 48), f"{len(drawn)} rows, {history.steps[-1]} updates", color=FAINT)
    most = max(len(candidates) for candidates in drawn.values())
    stride = (LEFT + WIDTH + GAP, HEIGHT + 44 + most * LINE + GAP)
    for number, (row, candidates) in enumerate(drawn.items()):
        left = MARGIN + number % columns * stride[0] + LEFT
        _draw_row(canvas, row, candidates, history.steps, left, TOP + number // columns * stride[1])
    return canvas.svg()


def _draw_row(
    canvas: Canvas, row: str, candidates: Mapping[str, list[float]], steps: list[int], left: float, top: float
) -> None:
    canvas.text((left, top + 12), row, bold=True, within=WIDTH, kind="row")
    top += 20
    for share in (0.0, 0.5, 1.0):
        level = top + HEIGHT * (1 - share)
        canvas.line([(left, level), (left + WIDTH, level)], GRID)
        canvas.text((left - 6, level + 4), f"{100 * share:.0f}%", size=10.0, color=FAINT, anchor="end")
    canvas.text((left, top + HEIGHT + 13), str(steps[0]), size=10.0, color=FAINT)
    canvas.text((left + WIDTH, top + HEIGHT + 13), f"{steps[-1]} updates", size=10.0, color=FAINT, anchor="end")
    for place, (name, values) in enumerate(candidates.items()):
        across = [left + WIDTH * _share(step, steps) for step in steps]
        points = [(x, top + HEIGHT * (1 - value)) for x, value in zip(across, values, strict=True)]
        dash = "5 3" if place >= len(PALETTE) else ""
        title = f"{name}: {100 * values[-1]:.1f}%"
        if len(points) > 1:
            canvas.line(points, color_at(place), width=1.6, dash=dash, title=title, kind="weight")
        canvas.circle(points[-1], color_at(place), radius=2.4, kind="end")
    _draw_names(canvas, candidates, left, top + HEIGHT + 30)


def _draw_names(canvas: Canvas, candidates: Mapping[str, list[float]], left: float, top: float) -> None:
    places = {name: place for place, name in enumerate(candidates)}
    order = sorted(candidates, key=lambda name: -candidates[name][-1])
    for number, name in enumerate(order):
        base = top + number * LINE
        canvas.circle((left + 4, base - 4), color_at(places[name]))
        bold = number == 0
        canvas.text((left + 14, base), name, size=11.0, within=WIDTH - 64, bold=bold, kind="candidate")
        share = f"{100 * candidates[name][-1]:.1f}%"
        canvas.text((left + WIDTH, base), share, size=11.0, anchor="end", bold=bold)


def _share(step: int, steps: list[int]) -> float:
    """Return how far along a step is; a single one is at the end."""
    return 1.0 if steps[-1] == steps[0] else (step - steps[0]) / (steps[-1] - steps[0])
