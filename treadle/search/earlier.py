"""Trials of earlier searches, which a new one begins with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.search.space.base import Searched


@dataclass(frozen=True)
class EarlierTrial:
    """A complete trial of another search.

    Attributes:
        source: The name of that search, and the number of the trial in it.
        parameters: What was decided.
        values: The objectives by name.
        metrics: All that was reported finally.
    """

    source: str
    parameters: Mapping[str, Any]
    values: Mapping[str, float]
    metrics: Mapping[str, float]

    def fits(self, searched: Searched, objectives: Sequence[str]) -> bool:
        """Whether a space has the same decisions, with these values, and the objectives are the same."""
        if any(name not in self.values for name in objectives):
            return False
        try:
            taken = searched.decide(lambda one: self.parameters[one.label])
        except KeyError:
            return False
        has_all = taken.keys() == self.parameters.keys()
        return has_all and all(searched.dimensions[label].contains(value) for label, value in taken.items())


def earlier_trials(given: Any) -> tuple[EarlierTrial, ...]:
    """Return the complete trials of earlier searches.

    Args:
        given: A sequence of searches, results of searches, or folders in which `treadle search` left them.

    Raises:
        ConfigError: Something is none of these.
    """
    if isinstance(given, (str, Path, Mapping)) or not isinstance(given, Sequence):
        raise ConfigError(f"warm_start={given!r} must be a list of folders, results or searches")
    found = []
    for one in given:
        results = _results(one)
        for trial in results["trials"]:
            if trial["values"] is not None and "replayed_from" not in trial and "from_search" not in trial:
                source = f"{results['name']}:{trial['number']}"
                found.append(EarlierTrial(source, trial["parameters"], trial["values"], trial["metrics"] or {}))
    return tuple(found)


def _results(given: Any) -> Mapping[str, Any]:
    if hasattr(given, "results"):
        found: Mapping[str, Any] = given.results()
        return found
    if isinstance(given, Mapping) and "trials" in given:
        return given
    path = Path(given) if isinstance(given, (str, Path)) else None
    if path is not None and path.is_dir():
        path = path / "results.json"
    if path is None or not path.is_file():
        raise ConfigError(
            f"warm_start has {given!r}, which is no search, no results of one, and no folder with results.json"
        )
    loaded: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded
