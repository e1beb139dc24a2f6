"""What a page knows of its runs, as plain data."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treadle.events import names
from treadle.nested import leaves
from treadle.report.charts import charts_of, is_evaluation, of_evaluations
from treadle.report.series import series_of
from treadle.run_reading import Panel, Run

FACTS = ("packages", "environment", "git", "command", "seed", "processes")
"""What of a manifest a page shows."""


def payload_of(runs: list[Run], panels: Sequence[Panel] = ()) -> dict[str, Any]:
    """Return everything that the page of these runs shows.

    Args:
        runs: The runs.
        panels: What is to be shown of all of them together.
    """
    described = [_described(run) for run in runs]
    metrics = dict.fromkeys(name for run in described for name in run["series"])
    return {
        "runs": described,
        "panels": [_panel(panel) for panel in panels],
        "charts": [chart.plain() for chart in charts_of(metrics)],
        "evaluations": _evaluations(runs),
        "differences": _differences(runs),
    }


def _described(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "state": run.state,
        "message": run.message,
        "step": max((int(row.get("step", 0)) for row in run.rows), default=0),
        "series": series_of(run),
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


def _evaluations(runs: list[Run]) -> dict[str, Any]:
    """Return the table of the last, lowest and highest value of every metric that an evaluation reported."""
    found: dict[str, list[dict[str, float] | None]] = {}
    for place, run in enumerate(runs):
        known = _named_by_engine(run)
        for row in run.rows:
            evaluates = any(map(is_evaluation, row))
            for name, value in row.items():
                wanted = of_evaluations(name) and (evaluates or name in known)
                if wanted and isinstance(value, (int, float)) and math.isfinite(value):
                    cells = found.setdefault(name, [None] * len(runs))
                    cells[place] = _joined(cells[place], float(value))
    return dict(sorted(found.items()))


def _named_by_engine(run: Run) -> set[str]:
    """Return what stands in lines without the sum of losses that all lines of training have; none in other doors.

    The engine evaluates under any name, in the lines of training too; the line that the end of training writes says
    which names these are.
    """
    alone = [row for row in run.rows if names.TOTAL_LOSS not in row]
    return {name for row in alone for name in row} if len(alone) < len(run.rows) else set()


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
