"""What a page knows of its runs, as plain data."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from treadle.config.dict_diff import leaves
from treadle.events import names
from treadle.runs.metric_rows import FileRows, is_number
from treadle.runs.reader import Panel, Run, Start
from treadle.tools.report.charts import Curves, group_charts, is_evaluation, is_evaluation_metric

FACTS = ("packages", "environment", "git", "command", "seed", "processes")
"""What of a manifest a page shows."""


def build_payload(runs: list[Run], panels: Sequence[Panel] = ()) -> dict[str, Any]:
    """Return everything that the page of these runs shows.

    Args:
        runs: The runs.
        panels: What is to be shown of all of them together.
    """
    found = [collect_metrics(run) for run in runs]
    described = [_described(run, metrics) for run, metrics in zip(runs, found, strict=True)]
    metrics = dict.fromkeys(name for run in described for name in run["series"])
    return {
        "runs": described,
        "panels": [_panel(panel) for panel in panels],
        "charts": [chart.plain() for chart in group_charts(metrics)],
        "evaluations": _evaluations(found),
        "differences": _differences(runs),
    }


def _described(run: Run, metrics: "Metrics") -> dict[str, Any]:
    return {
        "name": run.name,
        "state": run.state,
        "message": "; ".join([*filter(None, [run.message]), *run.problems, *metrics.problems]),
        "step": metrics.step,
        "series": metrics.curves.plain(),
        "starts": [{"step": start.step, "time": start.time} for start in run.starts],
        "checkpoints": [{"step": one.step, "size": one.size, "names": one.names} for one in run.checkpoints],
        "config": {key: _shown(value) for key, value in leaves(run.config).items()},
        "manifest": {key: _shown(value) for key, value in leaves(_facts(run)).items()},
        "panels": [_panel(panel) for panel in run.panels],
        "log": run.log,
    }


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
    """Return the table of the last, lowest and highest value of every metric that an evaluation reported."""
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
        problems: What of the lines could not be used, in words.
    """

    def __init__(self, starts: Iterable[Start] = ()) -> None:
        self.step, self.problems = 0, list[str]()
        self.curves = Curves(starts)
        self._rows, self._alone, self._named_alone = 0, 0, set[str]()
        # What evaluations reported in lines of their own kind, and in any line.
        self._of_evaluations: dict[str, dict[str, float]] = {}
        self._of_all: dict[str, dict[str, float]] = {}

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Take in the next rows."""
        self.curves.add(rows)
        for row in rows:
            self.step = max(self.step, int(row.get("step", 0)))
            self._rows += 1
            if names.TOTAL_LOSS not in row:
                self._alone += 1
                self._named_alone.update(row)
            evaluates = any(map(is_evaluation, row))
            for name, value in row.items():
                if is_evaluation_metric(name) and is_number(value):
                    self._of_all[name] = _joined(self._of_all.get(name), float(value))
                    if evaluates:
                        self._of_evaluations[name] = _joined(self._of_evaluations.get(name), float(value))

    def evaluations(self) -> dict[str, dict[str, float]]:
        """Return the last, lowest and highest value of every metric that an evaluation reported.

        The engine evaluates under any name, in the lines of training too; lines without the sum of losses that all
        lines of training have, as the end of training writes one, say which names these are. Other doors have no line
        with such a sum.
        """
        known = self._named_alone if self._alone < self._rows else set()
        return {**self._of_evaluations, **{name: cell for name, cell in self._of_all.items() if name in known}}


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


def _joined(cell: dict[str, float] | None, value: float) -> dict[str, float]:
    if cell is None:
        return {"last": value, "lowest": value, "highest": value}
    return {"last": value, "lowest": min(cell["lowest"], value), "highest": max(cell["highest"], value)}


def _differences(runs: list[Run]) -> list[dict[str, Any]]:
    """Return the keys of the configs in which not all runs agree, each with the value of every run."""
    configs = [{key: _shown(value) for key, value in leaves(run.config).items()} for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    table = [{"key": key, "values": [config.get(key) for config in configs]} for key in keys]
    return [row for row in table if len(set(row["values"])) > 1]


def names_of(paths: list[Path]) -> list[str]:
    """Return short names for the folders of runs, no two the same.

    >>> names_of([Path("a/runs/x"), Path("b/runs/x"), Path("b/runs/y")])
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
