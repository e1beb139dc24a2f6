"""One run of a search: which trial comes next, and what becomes of one that has ended."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError
from treadle.search.ask import Candidate, Proposer
from treadle.search.earlier import EarlierTrial
from treadle.search.errors import SearchError, StopSearchError
from treadle.search.launchers.base import COMPLETE, FAILED, PRUNED, STOPPED, Ending, Launcher, describe_error
from treadle.search.promotion.base import Copy, End, New, Promote, Promotion
from treadle.search.promotion.promoter import Promoter, last_step, rungs_of
from treadle.search.space.base import assignment_key
from treadle.search.space.extension import TrialWeights
from treadle.search.store.database import bounded_text
from treadle.search.store.history import (
    BEFORE,
    COPIED,
    ERROR,
    FINAL,
    INHERITED,
    LAST,
    LIMITS,
    PARENT,
    REPLAYED,
    RETRIED,
    RUNG,
    SECONDS,
    Outcome,
    dominates,
)
from treadle.search.store.index import TrialIndex, first_attempt
from treadle.search.store.store import Store, goal_of
from treadle.search.strategies.base import ExhaustedError, Strategy
from treadle.search.trial.context import TrialContext
from treadle.search.trial.reports import ReportError, objective_values
from treadle.search.trial.trial import RunningTrial

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from treadle.search.search import Search

# Which failed trials are run again


class RetryPolicy:
    """The rule by which failed trials are run again, with the same values under a new number.

    Args:
        times: How often each may be.
        kinds: The kinds of errors that are worth it, as classes or their names; None is all.

    Raises:
        ConfigError: The number is negative, or a kind is neither a class of errors nor a name.
    """

    def __init__(self, times: int = 0, kinds: Sequence[type[BaseException] | str] | None = None) -> None:
        if isinstance(times, bool) or not isinstance(times, int) or times < 0:
            raise ConfigError(f"retries={times!r} must be a whole number from 0 up")
        self.times = times
        self.kinds = None if kinds is None else {_name(kind) for kind in kinds}

    def due(
        self, attempts: "Mapping[int, Sequence[FrozenTrial]]", asked: Mapping[str, int] | None = None
    ) -> "FrozenTrial | None":
        """Return the first trial that is to be run again: it failed, and so did every attempt after it.

        Args:
            attempts: Of each trial that failed, by its number, all attempts at it.
            asked: Trials that somebody wants to be run again, with how many attempts there were then.
        """
        if not self.times and not asked:
            return None
        for first, made in sorted(attempts.items()):
            last = made[-1]
            if last.state.name == "FAIL" and (asked or {}).get(str(first)) == len(made):
                return last
            is_worth_it = self.kinds is None or last.user_attrs.get(ERROR, {}).get("kind") in self.kinds
            if last.state.name == "FAIL" and len(made) <= self.times and is_worth_it:
                return last
        return None


def _name(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return kind.__name__
    raise ConfigError(f"retry_on has {kind!r}; give classes of errors, or their names")


logger = logging.getLogger(__name__)

ASKED_STOP, ASKED_RETRIES = "asked_to_stop", "asked_retries"
"""The names under which the store keeps what somebody has asked of a search."""
PATIENCE = 500
"""How many replays in a row end a search: the strategy has nothing new to propose."""
TICK = 1.0
"""Seconds after which a search looks up, whether something has happened or not."""


@dataclass(frozen=True)
class SearchRules:
    """What a search does, as its arguments say it."""

    strategy: Strategy
    pruner: Any
    retrying: RetryPolicy
    max_failures: int | None
    replays: bool
    nonfinite: str
    proxy: Callable[[Any], float] | None
    proxy_pool: int
    weights: TrialWeights
    promotion: Promotion | None = None
    first: tuple[dict[str, Any], ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    patience: int | None = None
    earlier: tuple[EarlierTrial, ...] = ()


class SearchRun:
    """One run of a search.

    Everything that decides what comes next is read from the store, so that whoever is killed loses nothing.

    Args:
        search: The search.
        store: Its trials.
    """

    def __init__(self, search: "Search", store: Store) -> None:
        self.search, self.store, self.rules = search, store, search.rules
        self._proposing = Proposer(
            store,
            search.searched,
            search.rules.strategy,
            search.seed,
            proxy=search.rules.proxy,
            pool=search.rules.proxy_pool,
            promoted_by=() if search.rules.promotion is None else search.objectives[:1],
            first=search.rules.first,
        )
        self._promoter = (
            None
            if search.rules.promotion is None
            else Promoter(search.rules.promotion, store, search.objectives[0], search.trial_folder)
        )
        self._again: deque[FrozenTrial] = deque()
        self._index = TrialIndex(
            lambda trial: search.searched.restored(trial.params), [one.sign for one in search.objectives]
        )
        self._looked = 0.0
        self._asked_stop = store.asked(ASKED_STOP)
        self._asked_retries: dict[str, int] = store.asked(ASKED_RETRIES) or {}
        self._size = search.searched.size()
        self._failures = 0
        self._exhausted = False

    def run(self, launcher: Launcher, trials: int, deadline: float) -> None:
        """Run trials until there are enough, and those of other searches have ended as well."""
        self._await_others()
        if self.rules.earlier:
            self.store.in_turn(lambda require: self._take_earlier())
        told = False
        while True:
            while launcher.has_room and self._may_begin(deadline):
                trial = self._next(trials)
                if trial is None:
                    break
                self._begin(launcher, trial)
                self._take_over_now_and_then()
            if launcher.running:
                launcher.wait(TICK)
            elif not self._again:
                others = self.store.others()
                if not others or not self._may_begin(deadline):
                    return
                if not told:
                    logger.info("waiting for %d trials that other searches are running", len(others))
                    told = True
                time.sleep(TICK)
            self._take_over_now_and_then()

    def _take_earlier(self) -> None:
        """Store the trials of earlier searches that this space has too; those that are stored already stay alone."""
        searched, names = self.search.searched, [one.name for one in self.search.objectives]
        known = {trial.user_attrs.get(BEFORE) for trial in self.store.trials()}
        taken = 0
        for earlier in self.rules.earlier:
            if earlier.source in known or not earlier.fits(searched, names):
                continue
            decided = searched.decide(lambda one, given=earlier.parameters: given[one.label])  # type: ignore[misc]
            distributions = {label: searched.dimensions[label].distribution() for label in decided}
            notes = {BEFORE: earlier.source, FINAL: dict(earlier.metrics)}
            self.store.create(
                searched.stored(decided), distributions, notes, values=[earlier.values[name] for name in names],
                system=self._limits_kept(earlier.metrics),
            )  # fmt: skip
            taken += 1
        if taken:
            logger.info("%d trials of earlier searches are known", taken)

    def _limits_kept(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return by how much metrics are above each limit of the search.

        Raises:
            ReportError: A metric that has a limit is not there.
        """
        limits = self.rules.limits
        missing = [name for name in limits if name not in metrics]
        if missing:
            raise ReportError(f"limits= has {missing[0]!r}, and the final result only {sorted(metrics)}; report it too")
        return {LIMITS: [metrics[name] - limit for name, limit in limits.items()]} if limits else {}

    def _is_without_progress(self) -> bool:
        """Whether as many trials in a row as patience allows were no better than those before."""
        patience = self.rules.patience
        own = [one for one, trial in zip(self._index.outcomes, self._index.complete, strict=True) if _counts(trial)]
        if patience is None or len(own) <= patience:
            return False
        before, since = own[:-patience], own[-patience:]
        if len(self.search.objectives) == 1:
            return min(one.values for one in since) >= min(one.values for one in before)
        return all(
            any(one.values == old.values or dominates(old.values, one.values) for old in before) for one in since
        )

    def _may_begin(self, deadline: float) -> bool:
        return not self.search.is_stopping and time.monotonic() < deadline

    # Trials of searches that ended ------------------------------------------------------------------------

    def _await_others(self) -> None:
        """Take over what earlier runs left; where it is not known whether one still runs, wait until it is."""
        told = False
        while self._take_over():
            if not told:
                logger.info("waiting to see whether a search on another machine is still running")
                told = True
            time.sleep(TICK)

    def _take_over_now_and_then(self) -> None:
        """Look for trials of searches that have ended, but not after each of a thousand short trials."""
        if time.monotonic() - self._looked >= TICK:
            self._heed_requests()
            self._take_over()

    def _heed_requests(self) -> None:
        """Stop, or run trials again, if somebody has asked for that since this run began."""
        if self.store.asked(ASKED_STOP) != self._asked_stop and not self.search.is_stopping:
            logger.warning("somebody asked the search to stop; it begins no more trials")
            self.search.stop()
        self._asked_retries = self.store.asked(ASKED_RETRIES) or {}

    def _take_over(self) -> bool:
        """Take over running trials of others that have ended; return whether there may be more."""
        self._looked = time.monotonic()
        found, unknown = self.store.orphans()
        for trial in found:
            if FINAL in trial.user_attrs and self.rules.weights.is_left(trial.number):
                self._complete_from_report(trial)
            elif self._promoter is not None and self._promoter.is_at_goal(trial):
                self.store.pause(trial)
            else:
                self._again.append(trial)
        return unknown

    def _complete_from_report(self, trial: "FrozenTrial") -> None:
        """End a trial whose search was killed between its last word and its end."""
        names = [one.name for one in self.search.objectives]
        for name, value in self._limits_kept(trial.user_attrs[FINAL]).items():
            self.store.storage.set_trial_system_attr(trial._trial_id, name, value)
        self._finish(trial, COMPLETE, objective_values(trial.user_attrs[FINAL], names, "the final result"))

    # What comes next --------------------------------------------------------------------------------------

    def _next(self, budget: int) -> "FrozenTrial | None":
        """Return the next trial, stored as running; None if there is none."""
        if self._again:
            return self._again.popleft()
        # Searches that share a store take turns: no two choose the same, and together they run no trial too many.
        return self.store.in_turn(lambda require: self._chosen(budget, require))

    def _chosen(self, budget: int, require: Callable[[], None]) -> "FrozenTrial | None":
        created = self.store.unsure()
        while True:
            if created is not None:
                if not created.state.is_finished():
                    return created
                self.search.tell(created)  # a replay
            self._index.update(self.store.trials())
            failed = self.rules.retrying.due(self._index.attempts, self._asked_retries)
            if failed is not None:
                require()
                return self._retried(failed)
            if not self._exhausted and self._is_without_progress():
                logger.info("the last %d trials were no better; the search ends here", self.rules.patience)
                self._exhausted = True
            if self._promoter is None:
                if self._exhausted or self._index.asked >= budget:
                    return None
                created = self._proposed(require)
            else:
                created = self._moved(self._promoter, budget, require)
            if created is None:
                return None

    def _moved(self, promoter: Promoter, budget: int, require: Callable[[], None]) -> "FrozenTrial | None":
        """Return the trial that promotion has begin or continue; None if it has to wait, or there is none."""
        while True:
            limit = self._index.asked if self._exhausted else budget
            move = promoter.move(self._index, limit)
            if isinstance(move, New):
                created = self._proposed(require, move.goal)
                if created is not None or not self._exhausted:
                    return created
            elif isinstance(move, Promote):
                require()
                trial = self._index.trials[move.number]
                return self.store.unpause(trial, 1 + max(rungs_of(trial)))
            elif isinstance(move, Copy):
                require()
                return promoter.copy(move, self._index, self.search.searched, self.search.seed)
            elif isinstance(move, End):
                require()
                self._end_paused(self._index.trials[move.number])
            else:
                return None
            self._index.update(self.store.trials())

    def _end_paused(self, trial: "FrozenTrial") -> None:
        """End a paused trial that gets no more budget; its value is what it reached at its last rung."""
        found = rungs_of(trial)
        names = [one.name for one in self.search.objectives]
        self._finish(trial, PRUNED, objective_values(found[max(found)]["metrics"], names, "the result of a rung"))

    def _retried(self, failed: "FrozenTrial") -> "FrozenTrial":
        notes: dict[str, Any] = {RETRIED: first_attempt(failed)}
        kept = [INHERITED]
        if self._promoter is not None:
            # It continues in its own folder, at the rung where it failed.
            kept += [PARENT, COPIED, *(name for name in failed.user_attrs if name.startswith(f"{RUNG}:"))]
        notes.update({name: failed.user_attrs[name] for name in kept if name in failed.user_attrs})
        reached = last_step(failed)
        curve = {step: value for step, value in failed.intermediate_values.items() if step <= reached}
        return self.store.create(failed.params, failed.distributions, notes, goal=goal_of(failed), curve=curve)

    def _proposed(self, require: Callable[[], None], goal: int = 0) -> "FrozenTrial | None":
        """Return a new trial, or one that is complete because its result was known; None if there is nothing new."""
        index = self._index
        try:
            self._require_untried(index.known)
            candidate = self._proposing.next(index)
        except ExhaustedError:
            logger.info("every combination has been tried")
            self._exhausted = True
            return None
        require()
        twin = index.known.get(assignment_key(candidate.taken))
        if twin is not None and twin.state.is_finished() and self.rules.replays:
            return self._replayed(candidate, twin, index.trials)
        return self._stored(candidate, index.outcomes, goal)

    def _require_untried(self, known: "dict[str, FrozenTrial]") -> None:
        """Give up where replays are all that could come."""
        is_full = self.rules.replays and len(known) == self._size
        if is_full and all(one.state.is_finished() or self._promoter is not None for one in known.values()):
            raise ExhaustedError

    def _replayed(
        self, candidate: Candidate, twin: "FrozenTrial", trials: "Sequence[FrozenTrial]"
    ) -> "FrozenTrial | None":
        if len(trials) >= PATIENCE and all(REPLAYED in trial.user_attrs for trial in trials[-PATIENCE:]):
            logger.info("the last %d proposals had been tried before; the search ends here", PATIENCE)
            self._exhausted = True
            return None
        notes = {**candidate.notes, REPLAYED: twin.user_attrs.get(REPLAYED, twin.number)}
        return self._stored_as(candidate, notes, values=twin.values)

    def _stored(self, candidate: Candidate, outcomes: list[Outcome], goal: int) -> "FrozenTrial":
        notes = dict(candidate.notes)
        inherited = self.rules.weights.nearest(candidate.taken, notes.get(PARENT), outcomes)
        if inherited is not None:
            notes[INHERITED] = inherited
        return self._stored_as(candidate, notes, goal=goal)

    def _stored_as(
        self, candidate: Candidate, notes: dict[str, Any], values: Any = None, goal: int = 0
    ) -> "FrozenTrial":
        dimensions = self.search.searched.dimensions
        distributions = {label: dimensions[label].distribution() for label in candidate.taken}
        parameters = self.search.searched.stored(candidate.taken)
        return self.store.create(parameters, distributions, notes, system=candidate.system, values=values, goal=goal)

    # What becomes of it -----------------------------------------------------------------------------------

    def _begin(self, launcher: Launcher, trial: "FrozenTrial") -> None:
        session = RunningTrial(
            self.store,
            trial,
            self.search.objectives,
            self.rules.pruner,
            self.rules.nonfinite,
            rung=None if self._promoter is None else self._promoter.rung(trial),
            last_step=last_step(trial),
            budget=None if self._promoter is None else self._promoter.budget(trial),
        )
        taken, inherits = self.search.searched.restored(trial.params), trial.user_attrs.get(INHERITED)
        launcher.start(self.search.task(trial.number, taken, inherits, self._context(trial)), session)

    def _context(self, trial: "FrozenTrial") -> TrialContext | None:
        """Return what a trial that may be promoted knows of itself; None leaves it at its number and folder."""
        if self._promoter is None:
            return None
        return TrialContext(
            trial.number,
            self.search.trial_folder(first_attempt(trial)),
            self._promoter.budget(trial),
            self._promoter.promotion.budgets[-1],
            last_step(trial),
            trial.user_attrs.get(COPIED, [None])[0],
        )

    def on_end(self, session: RunningTrial, ending: Ending) -> None:
        """Store how a trial ended.

        Raises:
            SearchError: Too many have failed in a row, or the objective is one that no trial has reported.
            StopSearchError: The trial ended the search; it stays as it is, to be run again.
        """
        trial = session.trial
        if ending.state == STOPPED:
            raise StopSearchError(dict(ending.error or {}).get("message", ""))
        seconds = round(time.monotonic() - session.began, 3)
        if ending.state == FAILED:
            error = _bounded(ending.error or {})
            self._finish(trial, FAILED, None, {**self._facts(session), SECONDS: seconds, ERROR: error})
            self._require_objectives(session)
            self._count_failure(trial.number, error)
            return
        self._failures = 0
        try:
            limits = {} if session.values is None else self._limits_kept(session.metrics)
        except ReportError as error:
            self.on_end(session, Ending(FAILED, describe_error(error)))
            return
        if limits:
            self.store.storage.set_trial_system_attr(trial._trial_id, LIMITS, limits[LIMITS])
        facts = {**self._facts(session), SECONDS: seconds}
        if ending.state == PRUNED or session.stopped:
            last = session.last_value if len(self.search.objectives) == 1 else None
            self._finish(trial, PRUNED, None if last is None else [last], facts)
        elif self._promoter is not None and session.rung is not None:
            self._note_seconds(trial, seconds)
            self.store.pause(trial)
        else:
            if self._promoter is not None:
                facts[SECONDS] = round(seconds + trial.user_attrs.get(SECONDS, 0.0), 3)
            self._finish(trial, COMPLETE, session.values, facts)

    def _note_seconds(self, trial: "FrozenTrial", seconds: float) -> None:
        """Add to the time that a trial has taken at earlier rungs."""
        self.store.note(trial, SECONDS, round(trial.user_attrs.get(SECONDS, 0.0) + seconds, 3))

    def _facts(self, session: RunningTrial) -> dict[str, Any]:
        # An attempt before a kill may have come further than this one; or to its end, and this one had nothing to add.
        is_behind = session.has_reported and session.last_step < max(session.trial.intermediate_values, default=-1)
        return {LAST: session.last_step} if is_behind else {}

    def _finish(
        self, trial: "FrozenTrial", state: str, values: list[float] | None, facts: Mapping[str, Any] | None = None
    ) -> None:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        states = {COMPLETE: TrialState.COMPLETE, PRUNED: TrialState.PRUNED, FAILED: TrialState.FAIL}
        # Another search may have taken this one for dead, and been quicker: what is stored first counts.
        with suppress(UpdateFinishedTrialError):
            for name, value in (facts or {}).items():
                self.store.note(trial, name, value)
            self.store.finish(trial, states[state], values)
        self.search.tell(self.store.storage.get_trial(trial._trial_id))

    def _require_objectives(self, session: RunningTrial) -> None:
        """End a search for something that trials do not report: the next one would fail as this one did."""
        if session.lacking is None or self.rules.max_failures is None:
            return
        if not any(trial.state.name == "COMPLETE" for trial in self.store.trials()):
            raise SearchError(
                f"{session.lacking}: no trial has reported it; search for what is reported, by objectives= or "
                "-m NAME, in another folder (max_failures=None lets this search continue in any case)"
            )

    def _count_failure(self, number: int, error: dict[str, str]) -> None:
        self._failures += 1
        logger.warning("trial %d failed: %s: %s", number, error.get("kind"), error.get("message"))
        if self.rules.max_failures is not None and self._failures >= self.rules.max_failures:
            raise SearchError(
                f"the last {self._failures} trials failed, trial {number} with {error.get('kind')}: "
                f"{error.get('message')}\n{error.get('traceback', '').rstrip()}\nMend it and start the search again: "
                "it resumes (max_failures=None lets it continue in any case)"
            )


def _counts(trial: "FrozenTrial") -> bool:
    """Whether a trial was run by this search."""
    return REPLAYED not in trial.user_attrs and BEFORE not in trial.user_attrs


def _bounded(error: Mapping[str, str]) -> dict[str, str]:
    """Return an error that every store can hold: some databases have no room for a text of 64 KB."""
    return {name: bounded_text(text) for name, text in error.items()}
