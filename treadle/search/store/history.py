"""What is known when the next trial is chosen."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treadle.search.assignment import Assignment

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

    from treadle.search.space.base import Searched

OWNER, REPLAYED, RETRIED, PARENT = "owner", "replayed_from", "retry_of", "parent"
INHERITED, SCORE, ERROR, FLAGGED = "inherits_from", "proxy_score", "error", "nonfinite"
REPORT, FINAL, SECONDS, LAST, BIRTH = "report", "final", "seconds", "last_step", "birth"
RUNG, GOAL, COPIED = "rung", "goal", "copied"
LIMITS, BEFORE = "constraints", "from_search"
"""The names under which the store keeps facts about a trial."""


@dataclass(frozen=True)
class Outcome:
    """A trial that came to its end with a result.

    Attributes:
        number: Its number; the order of birth.
        taken: What was decided.
        values: The objectives, each as something to be made small.
    """

    number: int
    taken: Assignment
    values: tuple[float, ...]


@dataclass(frozen=True)
class Proposal:
    """What a strategy is given to choose the next trial.

    Attributes:
        searched: What there is to decide.
        study: Optuna's study, with all trials so far; what is written to the new trial stays in `trial`.
        trial: The new trial, which is not stored yet.
        chance: Random numbers that depend on the seed and the number of the trial only.
        outcomes: The results so far, in the order of birth.
        notes: What the strategy wants to be kept with the trial.
        place: How many trials there are before it that were not run again for one that failed.
        complete: The trials that `outcomes` are of, as the study has them.
        memory: What a strategy may keep from trial to trial to be faster: only what follows from the trials so far.
        rungs: Where trials are promoted, the results at each rung, in the order of birth.
        judged: How many trials have a result, those included that were promoted no further.
    """

    searched: "Searched"
    study: "Study"
    trial: "FrozenTrial"
    chance: random.Random
    outcomes: list[Outcome]
    notes: dict[str, Any]
    place: int
    complete: "Sequence[FrozenTrial]"
    memory: dict[Any, Any]
    judged: int = 0
    rungs: Mapping[int, list[Outcome]] = field(default_factory=dict)

    def learned(self, least: int) -> list[Outcome]:
        """Return results that compare: where trials are promoted, those of the highest rung with so many of them."""
        for rung in sorted(self.rungs, reverse=True):
            if len(self.rungs[rung]) >= least:
                return self.rungs[rung]
        return self.outcomes


def dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether `one` is nowhere larger than `other`, and somewhere smaller.

    >>> dominates((1.0, 2.0), (1.0, 3.0)), dominates((1.0, 3.0), (2.0, 2.0))
    (True, False)
    """
    return all(left <= right for left, right in zip(one, other, strict=True)) and one != other


def front(values: Mapping[int, tuple[float, ...]]) -> list[int]:
    """Return the numbers of the values that no others dominate, the smallest first; of equal ones the first.

    >>> front({0: (1.0, 1.0), 1: (2.0, 0.5), 2: (1.0, 1.0), 3: (2.0, 2.0)})
    [0, 1]
    """
    first = {own: number for number, own in reversed([*values.items()])}
    return [first[own] for own in sorted(first) if not any(dominates(other, own) for other in first)]
