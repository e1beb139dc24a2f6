"""What has become of the trials of a search, kept up to date at the cost of what changed since it was last asked."""

from bisect import insort
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from treadle.search.assignment import Assignment
from treadle.search.space.base import assignment_key
from treadle.search.store.history import BEFORE, COPIED, REPLAYED, RETRIED, Outcome

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


class TrialIndex:
    """The trials that have ended, by what is asked of them; a trial that has ended does not change.

    Args:
        restored: Returns what was decided in a stored trial, from its parameters.
        signs: For each objective 1 or -1: what makes its values something to be made small.

    Attributes:
        trials: All trials, in the order of their numbers.
        complete: The trials that came to a result, in the order of birth.
        outcomes: Their results, in this order too.
        known: What need not be tried again, complete or just being tried, by the identity of what is tried; of
            several the last.
        asked: How many trials there are of those that were asked for: no replays, no retries, and no copies.
        born: How many there are that are not retries.
        attempts: Of each trial that failed, by its number, all attempts at it.
    """

    def __init__(self, restored: Callable[["FrozenTrial"], Assignment], signs: Sequence[int]) -> None:
        self._restored, self._signs = restored, tuple(signs)
        self.trials: Sequence[FrozenTrial] = []
        self.complete: list[FrozenTrial] = []
        self.outcomes: list[Outcome] = []
        self.known: dict[str, FrozenTrial] = {}
        self.asked = self.born = 0
        self.attempts: dict[int, list[FrozenTrial]] = {}
        self._seen = 0
        self._open: list[int] = []
        self._twins: dict[str, dict[int, FrozenTrial]] = {}

    def update(self, trials: "Sequence[FrozenTrial]") -> None:
        """Take note of what is new.

        Args:
            trials: All trials, in the order of their numbers.
        """
        self.trials = trials
        new = range(self._seen, len(trials))
        for number in new:
            attributes = trials[number].user_attrs
            self.born += RETRIED not in attributes and BEFORE not in attributes
            self.asked += not any(name in attributes for name in (RETRIED, REPLAYED, COPIED, BEFORE))
        looked_at = [trials[number] for number in (*self._open, *new)]
        self._seen = len(trials)
        self._open = [trial.number for trial in looked_at if not trial.state.is_finished()]
        for trial in looked_at:
            self._note(trial)

    def _note(self, trial: "FrozenTrial") -> None:
        state = trial.state.name
        if state == "FAIL" or RETRIED in trial.user_attrs:
            made = self.attempts.setdefault(first_attempt(trial), [])
            made[:] = sorted([one for one in made if one.number != trial.number] + [trial], key=lambda one: one.number)
        taken = self._restored(trial)
        key = assignment_key(taken)
        twins = self._twins.setdefault(key, {})
        if state in ("COMPLETE", "RUNNING", "WAITING"):
            twins[trial.number] = trial
        else:
            twins.pop(trial.number, None)
        if twins:
            self.known[key] = twins[max(twins)]
        else:
            del self._twins[key]
            self.known.pop(key, None)
        if state == "COMPLETE":
            values = tuple(sign * value for sign, value in zip(self._signs, trial.values, strict=True))
            insort(self.complete, trial, key=lambda one: one.number)
            insort(self.outcomes, Outcome(trial.number, taken, values), key=lambda one: one.number)


def first_attempt(trial: "FrozenTrial") -> int:
    """Return the number that a trial had when it was first tried."""
    return int(trial.user_attrs.get(RETRIED, trial.number))
