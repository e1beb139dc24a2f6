"""The next trial: proposed by the strategy, compared with what is known, and ranked by a proxy if there is one."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treadle.data.seeds import fold_seed
from treadle.search.assignment import Assignment
from treadle.search.space.base import Searched, assignment_key
from treadle.search.store.history import SCORE, Outcome, Proposal
from treadle.search.store.store import Store
from treadle.search.strategies.base import Strategy
from treadle.search.trial.task import seeded

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

REDRAWS = 20
"""How often something is proposed again that another worker is just trying."""


@dataclass
class Candidate:
    """Something to try.

    Attributes:
        taken: What was decided.
        notes: What the strategy wants to be kept with it.
        system: What Optuna's sampler wants to be kept with it.
        score: What the proxy says; larger is better.
    """

    taken: Assignment
    notes: dict[str, Any] = field(default_factory=dict)
    system: dict[str, Any] = field(default_factory=dict)
    score: float = 0.0


class Proposer:
    """Chooses trials. All chance in it comes from the seed and the number of the trial.

    Args:
        store: The trials so far.
        searched: What there is to decide.
        strategy: What proposes.
        seed: The seed of the search.
        proxy: What ranks several proposals for one trial; None takes the first.
        pool: How many are ranked.
    """

    def __init__(
        self,
        store: Store,
        searched: Searched,
        strategy: Strategy,
        seed: int,
        *,
        proxy: Callable[[Any], float] | None = None,
        pool: int = 8,
    ) -> None:
        self._store, self._searched, self._strategy = store, searched, strategy
        self._seed, self._proxy, self._pool = seed, proxy, pool

    def next(self, number: int, outcomes: list[Outcome], known: "dict[str, FrozenTrial]") -> Candidate:
        """Return what to try next.

        Args:
            number: The number that the trial will have.
            outcomes: The results so far.
            known: The trials that need not be tried again, or are being tried, by the identity of what they try.

        Raises:
            ExhaustedError: There is nothing left to propose.
        """
        if self._proxy is None:
            return self._untried(number, outcomes, known)
        drawn = [self._drawn(number, attempt, outcomes) for attempt in range(self._pool)]
        fresh = [one for one in drawn if assignment_key(one.taken) not in known]
        ranked = fresh or drawn[:1]  # nothing new: one of the known ones, which is replayed or run again
        for candidate in ranked:
            candidate.score = self._score(candidate.taken, number)
            candidate.notes[SCORE] = candidate.score
        return max(ranked, key=lambda one: one.score)

    def _untried(self, number: int, outcomes: list[Outcome], known: "dict[str, FrozenTrial]") -> Candidate:
        for attempt in range(REDRAWS):
            candidate = self._drawn(number, attempt, outcomes)
            twin = known.get(assignment_key(candidate.taken))
            if twin is None or twin.state.is_finished():
                break
        return candidate

    def _drawn(self, number: int, attempt: int, outcomes: list[Outcome]) -> Candidate:
        from treadle.search.trial.view import TrialView, pending_trial, study_view

        view = TrialView(self._store.storage, pending_trial(number))
        notes: dict[str, Any] = {}
        chance = random.Random(fold_seed("trial", self._seed, number, attempt))
        study = study_view(self._store.study, view)
        taken = self._strategy.propose(Proposal(self._searched, study, view.own, chance, outcomes, notes))
        return Candidate(taken, notes, dict(view.own.system_attrs))

    def _score(self, taken: Assignment, number: int) -> float:
        assert self._proxy is not None
        with seeded(fold_seed("proxy", self._seed, number)):
            score = float(self._proxy(self._searched.task(taken).build()))
        return -math.inf if math.isnan(score) else score
