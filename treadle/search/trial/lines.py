"""What is said of a trial that has ended: one line, in the style of every door."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from treadle.console.lines import clock, line, number


class HasResults(Protocol):
    """What knows which trial is the best so far."""

    def results(self) -> Any:
        """Return trials, objectives and the best."""


class TrialLines:
    """Says a line about each trial that has ended; it ends with `*best` if no trial was better so far.

    Args:
        show: What is done with a line.

    Attributes:
        search: What knows the best; None tells without.
    """

    def __init__(self, show: Callable[[str], object]) -> None:
        self._show = show
        self.search: HasResults | None = None

    def __call__(self, trial: Mapping[str, Any]) -> None:
        """Say it."""
        best = None if self.search is None else self.search.results()["best"]
        self._show(trial_line(trial, best=best is not None and best["number"] == trial["number"]))


def trial_line(trial: Mapping[str, Any], *, best: bool = False) -> str:
    """Return the line of a trial.

    >>> trial = {"number": 3, "state": "complete", "parameters": {"lr": 0.01, "depth": 2}}
    >>> trial_line({**trial, "values": {"default": 0.94117}, "seconds": 62}, best=True)
    'trial 3  1m02s  0.9412  lr=0.01 depth=2 *best'
    >>> trial_line({**trial, "state": "pruned", "values": None, "curve": [[4, 0.5]]})
    'trial 3  pruned  0.5000 at step 4  lr=0.01 depth=2'

    Args:
        trial: The trial, as results have it.
        best: Whether no trial was better so far.
    """
    state = "" if trial["state"] == "complete" else trial["state"]
    spent = clock(trial["seconds"]) if trial.get("seconds") else ""
    note = ""
    if "replayed_from" in trial:
        note = f"(as trial {trial['replayed_from']})"
    elif "retry_of" in trial:
        note = f"(again for trial {trial['retry_of']})"
    told = line(f"trial {trial['number']}", spent, state, values_in(trial), parameters_in(trial["parameters"]), note)
    return told + (" *best" if best else "")


def values_in(trial: Mapping[str, Any]) -> str:
    """Return what a trial achieved, or how far it came."""
    if trial["values"] is not None:
        return "  ".join(_named(name) + number(value) for name, value in trial["values"].items())
    if trial["state"] == "failed":
        first, *_ = trial["error"].get("message", "").splitlines() or [""]
        return f"{trial['error'].get('kind')}: {first}"
    return f"{number(trial['curve'][-1][1])} at step {trial['curve'][-1][0]}" if trial["curve"] else ""


def _named(name: str) -> str:
    return "" if name == "default" else f"{name} "


def parameters_in(parameters: Mapping[str, Any]) -> str:
    """Return values by name.

    >>> parameters_in({"rate": 0.0123456, "width": 32})
    'rate=0.01235 width=32'
    """
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in parameters.items()}
    return " ".join(f"{name}={value}" for name, value in shown.items())
