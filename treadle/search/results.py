"""The trials of a search as plain data."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treadle.runs.html_table import html_table
from treadle.search.promotion.promoter import rungs_of
from treadle.search.space.base import Searched
from treadle.search.store.history import (
    BEFORE,
    COPIED,
    ERROR,
    FINAL,
    FLAGGED,
    INHERITED,
    LAST,
    LIMITS,
    PARENT,
    REPLAYED,
    REPORT,
    RETRIED,
    SCORE,
    SECONDS,
    front,
)
from treadle.search.trial.objectives import Objective

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

# What a search over trials found: plain data, which a notebook shows as a table


class SearchResults(dict[str, Any]):
    """The results of a search, as `Search.results` describes them; a dict like any other, but for notebooks."""

    def _repr_html_(self) -> str:
        """Show the trials as a table in a notebook: those that no other is better than first."""
        front = set(self["pareto"])
        ranked = sorted(self["trials"], key=lambda trial: (trial["number"] not in front, trial["number"]))
        objectives = list(self["objectives"])
        names = list(dict.fromkeys(name for trial in ranked for name in trial["parameters"]))
        rows = [
            [
                *(trial["number"], trial["state"]),
                *((trial["values"] or {}).get(name) for name in objectives),
                *(trial["parameters"].get(name) for name in names),
            ]
            for trial in ranked
        ]
        best = f"{self['name']}: {len(ranked)} trials by {self['strategy']}"
        return html_table(["trial", "state", *objectives, *names], rows, best)


STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "paused"}
FACTS = (REPLAYED, RETRIED, PARENT, INHERITED, SCORE, SECONDS, FLAGGED, ERROR)


def trial_data(trial: "FrozenTrial", searched: Searched, objectives: Sequence[Objective]) -> dict[str, Any]:
    """Return one trial as plain data."""
    complete = trial.state.name == "COMPLETE"
    values = list(trial.values) if complete and trial.values else None
    last = trial.user_attrs.get(LAST, max(trial.intermediate_values, default=-1))
    facts = {name: trial.user_attrs[name] for name in FACTS if name in trial.user_attrs}
    return {
        "number": trial.number,
        "state": STATES[trial.state.name],
        "parameters": searched.restored(trial.params),
        "values": None if values is None else dict(zip([one.name for one in objectives], values, strict=True)),
        "metrics": trial.user_attrs.get(FINAL),
        "curve": [[step, value] for step, value in sorted(trial.intermediate_values.items()) if step <= last],
        "reports": _reports(trial),
        "started": None if trial.datetime_start is None else trial.datetime_start.isoformat(),
        "ended": None if trial.datetime_complete is None else trial.datetime_complete.isoformat(),
        **facts,
        **_promoted(trial),
        **({BEFORE: trial.user_attrs[BEFORE]} if BEFORE in trial.user_attrs else {}),
        **({"feasible": max(trial.system_attrs[LIMITS]) <= 0} if LIMITS in trial.system_attrs else {}),
    }


def _promoted(trial: "FrozenTrial") -> dict[str, Any]:
    """Return, of a trial that was promoted, its results at rungs, and of a copy which trial it began with."""
    rungs = {str(rung): found["metrics"] for rung, found in rungs_of(trial).items()}
    copied = trial.user_attrs.get(COPIED)
    return {
        **({"rungs": rungs} if rungs else {}),
        **({} if copied is None else {"copied_from": copied[0], "replaces": copied[2]}),
    }


def _reports(trial: "FrozenTrial") -> dict[str, Any]:
    """Return the metrics of those intermediate results that had more than one, by step."""
    begin = f"{REPORT}:"
    return {name.removeprefix(begin): value for name, value in trial.user_attrs.items() if name.startswith(begin)}


def pareto_front(trials: Sequence[dict[str, Any]], objectives: Sequence[Objective]) -> list[int]:
    """Return the numbers of the trials that no other is better than, the best of the first objective first.

    Of trials with the same values the first counts. With one objective that is the best trial alone.
    """
    return front(
        {
            trial["number"]: tuple(one.sign * trial["values"][one.name] for one in objectives)
            for trial in trials
            if trial["values"] is not None
        }
    )
