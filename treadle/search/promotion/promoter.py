"""Carries promotion out: reads from the store how far trials are, and stores who is paused, continues, or begins."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.data.seeds import fold_seed
from treadle.search.promotion.base import (
    COMPLETE,
    ENDED,
    FAILED,
    PAUSED,
    RUNNING,
    Copy,
    Member,
    Move,
    Promotion,
)
from treadle.search.space.base import Searched
from treadle.search.store.history import BEFORE, COPIED, FINAL, PARENT, REPLAYED, RUNG
from treadle.search.store.index import TrialIndex, first_attempt
from treadle.search.store.store import Store, goal_of
from treadle.search.trial.objectives import Objective
from treadle.search.trial.reports import objective_values

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

STATES = {"RUNNING": RUNNING, "WAITING": PAUSED, "PRUNED": ENDED, "FAIL": FAILED, "COMPLETE": COMPLETE}
ASIDE = ".copying"
"""What the folder of a copy is called until it is whole."""


class Promoter:
    """The trials of a search as promotion sees them.

    Args:
        promotion: What decides.
        store: The trials.
        objective: What they are compared by.
        folder: The folder of each trial, by its number.
    """

    def __init__(self, promotion: Promotion, store: Store, objective: Objective, folder: Callable[[int], Path]) -> None:
        self.promotion, self._store, self._objective, self._folder = promotion, store, objective, folder

    def move(self, index: TrialIndex, trials: int) -> Move | None:
        """Return what to do next; None if there is nothing left to do.

        Args:
            index: What has become of the trials so far.
            trials: How many may begin.
        """
        latest: dict[int, FrozenTrial] = {}
        for trial in index.trials:
            if REPLAYED not in trial.user_attrs and BEFORE not in trial.user_attrs:
                latest[first_attempt(trial)] = trial
        return self.promotion.next([self._member(trial) for trial in latest.values()], trials)

    def _member(self, trial: "FrozenTrial") -> Member:
        results = {rung: self._sign(found["metrics"]) for rung, found in rungs_of(trial).items()}
        if FINAL in trial.user_attrs:
            results[self.promotion.last] = self._sign(trial.user_attrs[FINAL])
        state = STATES[trial.state.name]
        copied = trial.user_attrs.get(COPIED)
        # Of one that was to continue and was not quite stored as such, what it had reached counts.
        goal = max(results, default=0) if state == PAUSED else goal_of(trial)
        return Member(trial.number, state, goal, results, None if copied is None else tuple(copied))

    def _sign(self, metrics: dict[str, float]) -> float:
        return self._objective.sign * objective_values(metrics, [self._objective.name], "the result of a rung")[0]

    # How far a trial trains -------------------------------------------------------------------------------

    def budget(self, trial: "FrozenTrial") -> int:
        """Return how much a trial has been trained when it comes to the rung that it trains for."""
        return self.promotion.budgets[goal_of(trial)]

    def rung(self, trial: "FrozenTrial") -> int | None:
        """Return the rung that the next result of a trial is of; None if that is the final one."""
        goal = goal_of(trial)
        return None if goal == self.promotion.last else goal

    def is_at_goal(self, trial: "FrozenTrial") -> bool:
        """Whether a running trial has stored the result of the rung that it trains for, and need only be paused."""
        return f"{RUNG}:{goal_of(trial)}" in trial.user_attrs

    # A copy -----------------------------------------------------------------------------------------------

    def copy(self, move: Copy, index: TrialIndex, searched: Searched, seed: int) -> "FrozenTrial":
        """Store a trial that begins with the folder of another one, with settings near those of it."""
        source, number = index.trials[move.source], len(index.trials)
        self._copy_folder(self._folder(move.source), self._folder(number))
        chance = random.Random(fold_seed("explore", seed, number))
        taken = self.promotion.explored(searched, searched.restored(source.params), chance)
        distributions = {label: searched.dimensions[label].distribution() for label in taken}
        notes: dict[str, Any] = {
            PARENT: move.source,
            COPIED: [move.source, move.rung, move.replaced],
        }
        return self._store.create(searched.stored(taken), distributions, notes, goal=move.rung + 1)

    def _copy_folder(self, source: Path, target: Path) -> None:
        """Copy a folder, whole or not at all; where trials leave nothing, there is nothing to copy."""
        aside = target.with_name(target.name + ASIDE)
        for leftover in (aside, target):  # of a search that was killed before it stored the trial
            shutil.rmtree(leftover, ignore_errors=True)
        if source.is_dir():
            shutil.copytree(source, aside, symlinks=True)
            aside.rename(target)


def rungs_of(trial: "FrozenTrial") -> dict[int, dict[str, Any]]:
    """Return the results of a trial at rungs before the last, by rung."""
    begin = f"{RUNG}:"
    found = {int(name.removeprefix(begin)): value for name, value in trial.user_attrs.items() if name.startswith(begin)}
    return dict(sorted(found.items()))


def last_step(trial: "FrozenTrial") -> int:
    """Return the step of the last report before a trial was paused; -1 if there was none."""
    found = rungs_of(trial)
    return -1 if not found else int(found[max(found)]["last"])


def as_pruned(trial: "FrozenTrial") -> "FrozenTrial":
    """Return a paused trial as samplers of Optuna's understand it: one that ended early; any other as it is."""
    if trial.state.name != "WAITING" or not trial.intermediate_values:
        return trial
    import copy

    from optuna.trial import TrialState

    shown = copy.copy(trial)
    shown.state = TrialState.PRUNED
    return shown
