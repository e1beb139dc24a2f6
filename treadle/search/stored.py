"""A search as its store tells it, for whoever has neither its program nor its config: to look at, to stop, to retry."""

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from treadle.search.errors import SearchError
from treadle.search.results import SearchResults, pareto_front, trial_data
from treadle.search.run import ASKED_RETRIES, ASKED_STOP
from treadle.search.space.base import Searched
from treadle.search.space.config_space import Value
from treadle.search.space.dimensions import Categorical, Dimension, Numeric
from treadle.search.space.domains import Range
from treadle.search.store.index import TrialIndex
from treadle.search.store.store import ABOUT, open_storage, optuna, quiet_optuna
from treadle.search.trial.objectives import Objective


class DescribedSpace(Searched):
    """A space as a store describes it: what there is to decide is known, and not what comes of it.

    Args:
        described: The description, by label.
    """

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._described = dict(described)
        self.dimensions = {label: _dimension(label, one) for label, one in described.items() if _is_described(one)}

    def task(self, taken: dict[str, Any]) -> Value:
        """Return what was decided, as it is."""
        return Value(dict(taken))

    def described(self) -> dict[str, Any]:
        """Return what there is to decide."""
        return self._described

    def restored(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values as they are stored; a list is its text."""
        return dict(parameters)


def _is_described(one: Any) -> bool:
    return isinstance(one, dict) and ("choice" in one or "range" in one)


def _dimension(label: str, one: Mapping[str, Any]) -> Dimension:
    if "choice" in one:
        return Categorical(label, one["choice"])
    low, high = one["range"]
    whole = isinstance(low, int) and isinstance(high, int)
    return Numeric(label, Range(low, high, one["step"], one["log"], whole))


class StoredSearch:
    """A search in a store.

    Args:
        place: The folder of the search, the path of its journal, or the URL of its database.
        name: Its name in the store; by default that of the folder, or the only one there is.

    Raises:
        SearchError: There is no search there, or several, and no name.
    """

    def __init__(self, place: str | Path, name: str | None = None) -> None:
        library = optuna()
        self.folder = Path(place) if "://" not in str(place) and Path(place).is_dir() else None
        journal = None if self.folder is None else self.folder / "search.journal"
        if "://" not in str(place) and not (journal or Path(place)).is_file():
            raise SearchError(f"there is no search in {place}: no {journal or place}; name its folder, or a URL")
        storage = open_storage(str(place) if journal is None else journal)
        with quiet_optuna():
            known = [study.study_name for study in storage.get_all_studies() if ABOUT in study.user_attrs]
            self.name = _chosen(str(place), name or (self.folder.resolve().name if self.folder else None), known)
            self._study = library.load_study(study_name=self.name, storage=storage)
        about = self._study.user_attrs[ABOUT]
        self.objectives = [Objective(own, direction) for own, direction in about["objectives"]]
        self._space = DescribedSpace(about["space"] if isinstance(about["space"], dict) else {})
        self._about = about

    def results(self) -> SearchResults:
        """Return everything that is known, as `Search.results` does."""
        found = [trial_data(trial, self._space, self.objectives) for trial in self._study.get_trials(deepcopy=False)]
        front = pareto_front([one for one in found if one.get("feasible", True)], self.objectives)
        return SearchResults(
            {
                "name": self.name,
                "strategy": self._about["strategy"],
                "seed": self._about["seed"],
                "objectives": {one.name: one.direction for one in self.objectives},
                "space": self._space.described(),
                "trials": found,
                "pareto": front,
                "best": found[front[0]] if front else None,
            }
        )

    def trial_folder(self, trial: Mapping[str, Any]) -> Path | None:
        """Return the folder that belongs to a trial, if there is one."""
        number = trial.get("retry_of", trial["number"])
        path = None if self.folder is None else self.folder / "trials" / f"{number:04d}"
        return path if path is not None and path.is_dir() else None

    def stop(self) -> None:
        """Ask every program that runs the search to begin no more trials; one that is started later runs."""
        self._study.set_user_attr(ASKED_STOP, uuid.uuid4().hex)

    def retry(self, numbers: Sequence[int] = ()) -> list[int]:
        """Have failed trials run again, by whoever runs the search next or now; return their numbers.

        Args:
            numbers: Which; by default all that failed, and have not been run again with success.

        Raises:
            SearchError: A trial is not there, or has not failed.
        """
        index = TrialIndex(lambda trial: dict(trial.params), [one.sign for one in self.objectives])
        index.update(self._study.get_trials(deepcopy=False))
        failed = {first: made for first, made in index.attempts.items() if made[-1].state.name == "FAIL"}
        last = {made[-1].number: first for first, made in failed.items()}
        wanted = [last.get(number, number) for number in numbers] or sorted(failed)
        wrong = [number for number in wanted if number not in failed]
        if wrong:
            raise SearchError(f"trial {wrong[0]} of {self.name!r} has not failed; those that have are {sorted(failed)}")
        asked = {str(first): len(failed[first]) for first in wanted}
        self._study.set_user_attr(ASKED_RETRIES, {**self._study.user_attrs.get(ASKED_RETRIES, {}), **asked})
        return wanted


def _chosen(place: str, name: str | None, known: Sequence[str]) -> str:
    if name in known:
        return str(name)
    if len(known) == 1:
        return known[0]
    if not known:
        raise SearchError(f"there is no search in {place}")
    raise SearchError(f"{place} holds the searches {sorted(known)}; say which by --name")


def as_rows(results: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return the trials of a search as a table: its columns, and a row for each trial."""
    objectives = list(results["objectives"])
    labels = list(dict.fromkeys(label for one in results["trials"] for label in one["parameters"]))
    metrics = sorted({name for one in results["trials"] for name in one["metrics"] or {}} - set(objectives))
    rows = [
        [
            *(one["number"], one["state"], one.get("seconds")),
            *((one["values"] or {}).get(name) for name in objectives),
            *((one["metrics"] or {}).get(name) for name in metrics),
            *(_plain(one["parameters"].get(label)) for label in labels),
        ]
        for one in results["trials"]
    ]
    return ["number", "state", "seconds", *objectives, *metrics, *labels], rows


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else json.dumps(value)
