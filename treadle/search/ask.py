"""The next trial: proposed by the strategy, compared with what is known, and ranked by a proxy if there is one."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle.data.seeds import fold_seed
from treadle.search.assignment import Assignment
from treadle.search.promotion.promoter import as_pruned, rungs_of
from treadle.search.space.base import Searched, assignment_key, completed
from treadle.search.store.history import SCORE, Outcome, Proposal
from treadle.search.store.index import TrialIndex
from treadle.search.store.store import Store
from treadle.search.strategies.base import Strategy
from treadle.search.trial.objectives import Objective
from treadle.search.trial.reports import objective_values
from treadle.search.trial.task import seeded

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
        promoted_by: The objective that trials are promoted by, so that some have results and are not complete.
        first: Settings to try before the strategy is asked.
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
        promoted_by: Sequence[Objective] = (),
        first: Sequence[Assignment] = (),
    ) -> None:
        self._store, self._searched, self._strategy = store, searched, strategy
        self._seed, self._proxy, self._pool = seed, proxy, pool
        self._is_promoted, self._objectives, self._first = bool(promoted_by), promoted_by, first
        self._memory: dict[Any, Any] = {}

    def next(self, index: TrialIndex) -> Candidate:
        """Return what to try next.

        Args:
            index: What has become of the trials so far.

        Raises:
            ExhaustedError: There is nothing left to propose.
        """
        if index.asked < len(self._first):
            chance = random.Random(fold_seed("first", self._seed, index.asked))
            return Candidate(completed(self._searched, self._first[index.asked], chance))
        if self._proxy is None:
            return self._untried(index)
        drawn = [self._drawn(attempt, index) for attempt in range(self._pool)]
        fresh = [one for one in drawn if assignment_key(one.taken) not in index.known]
        ranked = fresh or drawn[:1]  # nothing new: one of the known ones, which is replayed or run again
        for candidate in ranked:
            candidate.score = self._score(candidate.taken, len(index.trials))
            candidate.notes[SCORE] = candidate.score
        return max(ranked, key=lambda one: one.score)

    def _untried(self, index: TrialIndex) -> Candidate:
        for attempt in range(REDRAWS):
            candidate = self._drawn(attempt, index)
            twin = index.known.get(assignment_key(candidate.taken))
            if twin is None or twin.state.is_finished():
                break
        return candidate

    def _drawn(self, attempt: int, index: TrialIndex) -> Candidate:
        from treadle.search.trial.view import TrialView, pending_trial, study_view

        number = len(index.trials)
        seen = [*map(as_pruned, index.trials)] if self._is_promoted else index.trials
        view = TrialView(self._store.storage, lambda: seen, pending_trial(number))
        judged, rungs = self._judged(index) if self._is_promoted else (0, {})
        notes: dict[str, Any] = {}
        chance = random.Random(fold_seed("trial", self._seed, number, attempt))
        study = study_view(self._store.study, view)
        proposal = Proposal(
            self._searched,
            study,
            view.own,
            chance,
            index.outcomes,
            notes,
            index.born,
            index.complete,
            self._memory,
            judged,
            rungs,
        )
        taken = self._strategy.propose(proposal)
        return Candidate(taken, notes, dict(view.own.system_attrs))

    def _judged(self, index: TrialIndex) -> tuple[int, dict[int, list[Outcome]]]:
        """Return how many trials have a result at some rung, and the results by rung; the last is what is complete."""
        rungs: dict[int, list[Outcome]] = {}
        judged = 0
        for trial in index.trials:
            found = rungs_of(trial)
            judged += bool(found) or trial.state.name == "COMPLETE"
            for rung, result in found.items():
                values = objective_values(result["metrics"], [self._objectives[0].name], "the result of a rung")
                signed = tuple(self._objectives[0].sign * value for value in values)
                taken = self._searched.restored(trial.params)
                rungs.setdefault(rung, []).append(Outcome(trial.number, taken, signed))
        return judged, rungs

    def _score(self, taken: Assignment, number: int) -> float:
        assert self._proxy is not None
        with seeded(fold_seed("proxy", self._seed, number)):
            score = float(self._proxy(self._searched.task(taken).build()))
        return -math.inf if math.isnan(score) else score
