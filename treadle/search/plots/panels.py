"""What a search shows of itself on its page: drawings of its trials, and a table of the best."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from treadle.files.atomic_io import replace_text
from treadle.runs.panels import write_picture, write_table
from treadle.runs.reader import TRIALS, UNFINISHED
from treadle.runs.status import FINISHED
from treadle.search.plots import parallel_coordinates, pareto_plot, trial_scatter
from treadle.search.plots.curves import curve_lines, has_curves
from treadle.search.plots.importance import importance_bars

FOLDERS = "trials"
"""The folder with one for each trial."""
LEAST = 8
"""How many complete trials there are before the page says what matters."""
BEST = 20
"""Rows of the table of the best trials."""
PAUSE = 10.0
"""Seconds between two drawings while trials run: whoever follows them sees enough, and trials wait for none."""
SHARE = 50
"""How many times as long as the last drawing took the pause is at least: thousands of trials take seconds to draw."""


def write_panels(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw a search into the folder `panels` of its own; return the paths of the drawings.

    `trials.svg`, `parallel_coordinates.svg` and `best_trials.json`; with several objectives `pareto_front.svg`, with
    several decisions `importance.svg`, and where trials report more than once `intermediate_results.svg`.

    Args:
        results: What `Search.results()` returns.
        folder: The folder of the search.
    """
    given = dict(results)
    drawn = {"trials": trial_scatter(given), "parallel_coordinates": parallel_coordinates(given)}
    if len(results["objectives"]) > 1:
        drawn["pareto_front"] = pareto_plot(given)
    if len(results["space"]) > 1 and sum(trial["values"] is not None for trial in results["trials"]) >= LEAST:
        drawn["importance"] = importance_bars(given)
    if has_curves(given):
        drawn["intermediate_results"] = curve_lines(given)
    write_table(folder, "best_trials", *_with_folders(folder, *_best_trials(results)))
    return [write_picture(folder, name, svg) for name, svg in drawn.items()]


def _with_folders(folder: Path, columns: list[str], rows: list[list[Any]]) -> tuple[list[str], list[list[Any]]]:
    """Add the folder of each trial, where trials have one."""
    own = [folder / FOLDERS / f"{row[0]:04d}" for row in rows]
    if not any(path.is_dir() for path in own):
        return columns, rows
    shown = [str(path.relative_to(folder)) if path.is_dir() else "" for path in own]
    first, *others = columns
    return [first, "folder", *others], [[row[0], path, *row[1:]] for row, path in zip(rows, shown, strict=True)]


def _best_trials(results: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return the best trials, the best first, as columns and rows: with several objectives those of the front."""
    names = list(results["objectives"])
    complete = [trial for trial in results["trials"] if trial["values"] is not None and "replayed_from" not in trial]
    sign = -1 if results["objectives"][names[0]].startswith("max") else 1
    best = sorted(complete, key=lambda trial: (sign * trial["values"][names[0]], trial["number"]))
    if len(names) > 1:
        best = [trial for trial in best if trial["number"] in results["pareto"]]
    decided = list(dict.fromkeys(label for trial in best[:BEST] for label in trial["parameters"]))
    rows = [
        [
            trial["number"],
            *(_brief(trial["values"][name]) for name in names),
            *(_brief(trial["parameters"].get(label, "")) for label in decided),
        ]
        for trial in best[:BEST]
    ]
    return ["trial", *names, *decided], rows


def _brief(value: Any) -> Any:
    """Return a number in few digits, and a whole one without a point.

    >>> _brief(0.123456789), _brief(4810.0), _brief("relu")
    (0.12346, 4810, 'relu')
    """
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.5g}")


class Panels:
    """Keeps the page of a search up to date while its trials run.

    Args:
        folder: The folder of the search.
        picture: Returns a drawing of what was decided in a trial, under a title; None if there is nothing to draw.
    """

    def __init__(self, folder: Path, picture: Callable[[dict[str, Any], str], str | None]) -> None:
        self._folder, self._picture = folder, picture
        self._last, self._took = time.monotonic(), 0.0

    @property
    def is_due(self) -> bool:
        """Whether the last drawings are old enough to be made again while trials run."""
        return time.monotonic() - self._last > max(PAUSE, SHARE * self._took)

    def write(self, results: Mapping[str, Any], *, ended: bool = False) -> None:
        """Draw what is known, and note whether the search has come to its end."""
        begin = time.monotonic()
        write_panels(results, self._folder)
        best = results["best"]
        title = "" if best is None else f"The best architecture, of trial {best['number']}"
        drawn = None if best is None else self._picture(best["parameters"], title)
        if drawn is not None:
            write_picture(self._folder, "best_architecture", drawn)
        about = {name: results[name] for name in ("name", "strategy", "seed", "objectives", "space")}
        state = FINISHED if ended else UNFINISHED
        tried = [trial for trial in results["trials"] if "replayed_from" not in trial]
        described = {"state": state, "trials": len(tried), "about": about}
        replace_text(self._folder / TRIALS, json.dumps(described, indent=1))
        self._last = time.monotonic()
        self._took = self._last - begin
