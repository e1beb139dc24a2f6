"""A study as one trial may see it: everything of the others, and of itself only what it did this time.

Samplers and pruners of Optuna write notes to the trial they are asked about. A trial that is not stored yet has no
place for them, and one that is run again after a kill must not find those of the first time, or it would not be
stopped where an undisturbed one is. Both are given a study whose storage keeps the notes of that one trial here.
"""

import copy
from collections.abc import Callable, Container, Sequence
from typing import Any

from optuna import Study
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial


class TrialView:
    """The storage behind such a study: `own` in the place of the stored trial, everything else as it is.

    Args:
        storage: The storage of the study.
        trials: Returns all trials, in the order of their numbers.
        own: The trial, as it is to be seen.
        write_through: Whether notes to it are stored as well, for other trials to see.
    """

    def __init__(
        self,
        storage: BaseStorage,
        trials: Callable[[], Sequence[FrozenTrial]],
        own: FrozenTrial,
        *,
        write_through: bool = False,
    ) -> None:
        self._storage = storage
        self._trials = trials
        self._write_through = write_through
        self.own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return all trials, the own one as it is here."""
        found, place = list(self._trials()), self.own.number
        found[place : place + 1] = [self.own]
        if states is not None:
            found = [trial for trial in found if trial.state in states]
        return copy.deepcopy(found) if deepcopy else found

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial."""
        return self.own if trial_id == self.own._trial_id else self._storage.get_trial(trial_id)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Keep a note; that of the own trial is kept here."""
        own = trial_id == self.own._trial_id
        if self._write_through or not own:
            self._storage.set_trial_system_attr(trial_id, key, value)
        if not own:
            return
        # A new dict each time: whoever was given the trial before must not see it change.
        self.own = copy.copy(self.own)
        self.own.system_attrs = {**self.own.system_attrs, key: value}


def study_view(study: Study, view: TrialView) -> Study:
    """Return a study that reads and writes through `view`."""
    seen = copy.copy(study)
    seen._storage = view  # type: ignore[assignment]
    seen._thread_local = type(study._thread_local)()
    return seen


def pending_trial(number: int) -> FrozenTrial:
    """Return a trial that is not stored yet."""
    trial = create_trial(state=TrialState.RUNNING)
    trial.number = number
    return trial
