"""What a page knows of its runs, as plain data."""

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from treadle.config.dict_diff import leaves
from treadle.console.metric_names import TRAINING_LOSSES, canonical_name, find_name
from treadle.events import names
from treadle.runs.metric_rows import FileRows, is_number
from treadle.runs.reader import Panel, Run, Start, watched_metric
from treadle.tools.report.charts import (
    HIDDEN,
    Curves,
    Series,
    group_charts,
    is_drawn,
    is_evaluation,
    is_evaluation_metric,
    repeated,
)

FALLBACK = "eval_loss_epoch"
"""What a run is judged by where it does not say."""
FACTS = ("packages", "environment", "git", "command", "seed", "processes")
"""What of a manifest a page shows."""
COLOURS = 8
"""Colours that people tell apart at a glance: a run prefers one of these."""
MORE_COLOURS = 12
"""Chosen colours that the page has; behind them it makes more."""
DRAWN_POINTS, LEAST_POINTS = 8_000, 150
"""Points of one metric that a page draws, over all runs, and the least of each: a browser must stay quick."""
ALWAYS_DIFFERENT = ("run_dir", "train.output_dir")
"""Keys of configs that differ between any two runs."""


def build_payload(
    runs: list[Run], panels: Sequence[Panel] = (), colours: dict[str, int] | None = None
) -> dict[str, Any]:
    """Return everything that the page of these runs shows.

    Args:
        runs: The runs.
        panels: What is to be shown of all of them together.
        colours: The colours that runs have already, by their names; those of new ones are added.
    """
    found = [collect_metrics(run) for run in runs]
    chosen = choose_colours(runs, colours)
    most = max(LEAST_POINTS, DRAWN_POINTS // max(1, len(runs)))
    name_alike(found)
    series = [metrics.series(most) for metrics in found]
    same = repeated(series)
    judged = {
        one[0] for run, metrics in zip(runs, found, strict=True) if (one := _judged_by(run, metrics, same)) is not None
    }
    evaluated = sorted(_evaluations(found).items(), key=lambda item: item[0] not in judged)
    told = {name: cells for name, cells in evaluated if name not in same}
    shown = [name for name in dict.fromkeys(name for one in series for name in one) if name not in same]
    drawn = [name for name in shown if is_drawn(name, series)]
    described = [
        {**_described(run, metrics, same), "series": curves, "colour": chosen[run.name]}
        for run, metrics, curves in zip(runs, found, series, strict=True)
    ]
    return {
        "runs": described,
        "panels": [_panel(panel) for panel in panels],
        "charts": [chart.plain() for chart in group_charts(drawn)],
        "repeated": _by_kept(same),
        "evaluations": told,
        "directions": _directions(runs, told),
        "once": _once([name for name in shown if name not in drawn and name not in told], series),
        "differences": _differences(runs),
    }


def choose_colours(runs: list[Run], known: dict[str, int] | None = None) -> dict[str, int]:
    """Return a colour for every run, which is its own: it depends on the name, and those that began first choose first.

    So a run keeps its colour whichever runs come after it, on this page and on later ones.

    Args:
        runs: The runs.
        known: Colours that are given already; those of new runs are added.
    """
    given = {} if known is None else known
    for run in sorted(runs, key=lambda run: (run.starts[0].time or 0.0 if run.starts else 0.0, run.name)):
        if run.name not in given:
            # Those of runs that are gone stay theirs for as long as there are others.
            taken = set(given.values())
            first = zlib.crc32(run.name.encode()) % COLOURS
            order = [*((first + more) % COLOURS for more in range(COLOURS)), *range(COLOURS, MORE_COLOURS)]
            given[run.name] = next((one for one in order if one not in taken), max(taken, default=0) + 1)
    return given


def _by_kept(same: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, kept in same.items():
        found.setdefault(kept, []).append(name)
    return found


def _directions(runs: list[Run], metrics: Collection[str]) -> dict[str, str]:
    """Return for each metric whether the lowest or the highest value is best, where that is known."""
    found = {name: direction for name in metrics if (direction := names.direction_of(name)) is not None}
    for run in runs:
        watched = watched_metric(run)
        if watched is not None:
            found[find_name(watched[0], metrics, evaluated=True)] = watched[1]
    return found


def _once(metrics: list[str], series: Sequence[Series]) -> dict[str, list[float | None]]:
    """Return the values of metrics that no run has two values of: each is a number, and no curve."""
    return {
        name: [
            next((value for value in run[name]["value"] if value is not None), None) if name in run else None
            for run in series
        ]
        for name in metrics
        if name not in HIDDEN
    }


def _described(run: Run, metrics: "Metrics", same: Mapping[str, str]) -> dict[str, Any]:
    each = run.config.get("num_update_steps_per_epoch")
    beat = run.heartbeat
    return {
        "name": run.name,
        "state": run.state,
        "message": "; ".join([*filter(None, [run.message]), *run.problems, *metrics.problems]),
        "step": max(metrics.step, 0 if beat is None else beat.step),
        "limit": run.planned_steps,
        "beat": None if beat is None else beat.time,
        "seconds": round(metrics.curves.seconds, 3),
        "best": _best(run, metrics, same),
        "parameters": _parameters(run),
        "device": _device(run),
        "epochs": metrics.curves.epoch_ends(each if type(each) is int and each > 0 else None),
        "starts": [{"step": start.step, "time": start.time} for start in run.starts],
        "checkpoints": [{"step": one.step, "size": one.size, "names": one.names} for one in run.checkpoints],
        "config": {key: _shown(value) for key, value in leaves(run.config).items()},
        "manifest": {key: _shown(value) for key, value in leaves(_facts(run)).items()},
        "panels": [_panel(panel) for panel in run.panels],
        "log": run.log,
    }


def _judged_by(run: Run, metrics: "Metrics", same: Mapping[str, str]) -> tuple[str, str] | None:
    """Return what `watched_metric` does, where an evaluation reported it; else the first metric that can be best."""
    cells = metrics.evaluations()

    def shown(name: str) -> str:
        kept = same.get(name, name)
        return kept if kept in cells else name

    watched = watched_metric(run)
    if watched is not None:
        name = find_name(watched[0], cells, evaluated=True)
        if name in cells:
            return shown(name), watched[1]
    # A score is what a door made of its metrics to judge by; where it is one of them, that is its name here.
    scores = [shown(name) for name in cells if name.endswith("score")]
    known = [(name, names.direction_of(name)) for name in (FALLBACK, *scores, *cells) if name in cells]
    return next(((name, how) for name, how in known if how is not None), None)


def _best(run: Run, metrics: "Metrics", same: Mapping[str, str]) -> dict[str, Any] | None:
    """Return what a run came to: the best value of the metric it is judged by, else its last loss."""
    judged = _judged_by(run, metrics, same)
    if judged is not None:
        cell, place = metrics.evaluations()[judged[0]], "highest" if judged[1] == "max" else "lowest"
        return {"metric": judged[0], "value": cell[place], "step": cell[f"{place}_step"], "is": "best"}
    last = metrics.last_loss
    if last is None:
        return None
    return {"metric": metrics.shown_names.get(last[0], last[0]), "value": last[1], "step": last[2], "is": "last"}


def _parameters(run: Run) -> dict[str, int] | None:
    told = run.manifest.get("parameters")
    counts: list[Any] = [told.get("trained"), told.get("frozen")] if isinstance(told, dict) else [None]
    if any(type(one) is not int for one in counts):
        return None
    return {"trained": counts[0], "frozen": counts[1]}


def _device(run: Run) -> str:
    """Return on what a run trains: the name of the GPU, or what the run was told."""
    environment = run.manifest.get("environment")
    name = str(environment.get("device", "")) if isinstance(environment, dict) else ""
    device = run.config.get("device")
    device = device if isinstance(device, str) else name
    shown = name if device.startswith("cuda") and name else device
    processes = run.manifest.get("processes")
    return f"{processes} x {shown}" if shown and type(processes) is int and processes > 1 else shown


def _facts(run: Run) -> dict[str, Any]:
    facts = {name: run.manifest[name] for name in FACTS if name in run.manifest}
    if isinstance(facts.get("command"), list):
        facts["command"] = " ".join(map(str, facts["command"]))
    return facts


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "title": panel.title,
        "svg": panel.svg,
        "columns": panel.columns,
        "rows": [[_shown(cell) for cell in row] for row in panel.rows],
    }


def _evaluations(metrics: list["Metrics"]) -> dict[str, Any]:
    """Return the last, lowest and highest value of every metric that an evaluation reported, with their steps."""
    found: dict[str, list[dict[str, float] | None]] = {}
    for place, one in enumerate(metrics):
        for name, cell in one.evaluations().items():
            found.setdefault(name, [None] * len(metrics))[place] = cell
    return dict(sorted(found.items()))


class Metrics:
    """What the rows of a run's metrics come to on a page; they may be fed bit by bit, and none of them is kept.

    Args:
        starts: The starts of the run.

    Attributes:
        step: The last step.
        last_loss: The last training loss: its name, value and step; None before the first.
        problems: What of the lines could not be used, in words.
        shown_names: For names that a page shows as another, that other one.
    """

    def __init__(self, starts: Iterable[Start] = ()) -> None:
        self.step, self.problems = 0, list[str]()
        self.last_loss: tuple[str, float, int] | None = None
        self.shown_names: Mapping[str, str] = {}
        self.curves = Curves(starts)
        self._rows, self._alone, self._named_alone = 0, 0, set[str]()
        # What evaluations reported in lines of their own kind, and in any line.
        self._of_evaluations: dict[str, dict[str, float]] = {}
        self._of_all: dict[str, dict[str, float]] = {}

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Take in the next rows."""
        self.curves.add(rows)
        for row in rows:
            step = int(row.get("step", 0))
            self.step = max(self.step, step)
            loss = next((name for name in TRAINING_LOSSES if is_number(row.get(name))), None)
            if loss is not None:
                self.last_loss = (loss, float(row[loss]), step)
            self._rows += 1
            if names.TOTAL_LOSS not in row:
                self._alone += 1
                self._named_alone.update(row)
            evaluates = any(map(is_evaluation, row))
            for name, value in row.items():
                if is_evaluation_metric(name) and is_number(value):
                    self._of_all[name] = _joined(self._of_all.get(name), float(value), step)
                    if evaluates:
                        self._of_evaluations[name] = _joined(self._of_evaluations.get(name), float(value), step)

    def evaluations(self) -> dict[str, dict[str, float]]:
        """Return the last, lowest and highest value of every metric that an evaluation reported.

        The engine evaluates under any name, in the lines of training too; lines without the sum of losses that all
        lines of training have, as the end of training writes one, say which names these are. Other doors have no line
        with such a sum.
        """
        known = self._named_alone if self._alone < self._rows else set()
        cells = {**self._of_evaluations, **{name: cell for name, cell in self._of_all.items() if name in known}}
        return {self.shown_names.get(name, name): cell for name, cell in cells.items()}

    def series(self, most: int) -> dict[str, dict[str, list[Any]]]:
        """Return the curves by the names that a page shows, each with at most so many points."""
        return {self.shown_names.get(name, name): curve for name, curve in self.curves.plain(most).items()}


def name_alike(runs: Sequence[Metrics]) -> None:
    """Have metrics that runs of several doors name differently shown under one name, that of the core."""
    named = [run.curves.names for run in runs]
    called: dict[str, set[str]] = {}
    for name in set().union(*named):
        called.setdefault(canonical_name(name), set()).add(name)
    several = {own: names for own, names in called.items() if len(names) > 1}
    for run, present in zip(runs, named, strict=True):
        # A run that has two of the names keeps both.
        alone = {own: names & present for own, names in several.items() if len(names & present) == 1}
        run.shown_names = {name: own for own, (name,) in alone.items()}


def collect_metrics(run: Run) -> Metrics:
    """Return what the rows of a run come to."""
    if isinstance(run.metrics, Metrics):
        return run.metrics
    found = Metrics(run.starts)
    if isinstance(run.rows, FileRows):
        lines = run.rows.lines()
        for rows in lines.read(unfinished=True):
            found.add(rows)
        found.problems = lines.told()
    else:
        found.add(run.rows)
    return found


def _joined(cell: dict[str, float] | None, value: float, step: int) -> dict[str, float]:
    if cell is None:
        cell = {"lowest": value, "lowest_step": step, "highest": value, "highest_step": step}
    if value < cell["lowest"]:
        cell = {**cell, "lowest": value, "lowest_step": step}
    if value > cell["highest"]:
        cell = {**cell, "highest": value, "highest_step": step}
    return {**cell, "last": value, "last_step": step}


def _differences(runs: list[Run]) -> list[dict[str, Any]]:
    """Return the keys of the configs in which not all runs agree, each with the value of every run."""
    configs = [{key: _shown(value) for key, value in leaves(run.config).items()} for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config if key not in ALWAYS_DIFFERENT)
    table = [{"key": key, "values": [config.get(key) for config in configs]} for key in keys]
    return [row for row in table if len(set(row["values"])) > 1]


def short_names(paths: list[Path]) -> list[str]:
    """Return short names for the folders of runs, no two the same.

    >>> short_names([Path("a/runs/x"), Path("b/runs/x"), Path("b/runs/y")])
    ['a/runs/x', 'b/runs/x', 'y']
    """
    found = [path.resolve() for path in paths]
    lengths = [1] * len(found)
    while True:
        names = ["/".join(path.parts[-length:]) for path, length in zip(found, lengths, strict=True)]
        longer = [
            length + (names.count(name) > 1 and length < len(path.parts))
            for path, name, length in zip(found, names, lengths, strict=True)
        ]
        if longer == lengths:
            return names
        lengths = longer


def _shown(value: Any) -> str:
    """Return a value as text for people.

    >>> [_shown(value) for value in (None, 0.1, "a", [1, 2], True)]
    ['none', '0.1', 'a', '[1, 2]', 'true']
    """
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)
