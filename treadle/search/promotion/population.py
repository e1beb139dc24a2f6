"""Population-based training: the worst of a population continue as copies of the best, with other settings."""

import random
from collections.abc import Callable, Sequence

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError
from treadle.search.assignment import Assignment
from treadle.search.promotion.base import (
    FAILED,
    PAUSED,
    RUNNING,
    Copy,
    End,
    Member,
    Move,
    New,
    Promote,
    Promotion,
    Wait,
    require_part,
)
from treadle.search.space.base import Searched
from treadle.search.space.dimensions import Dimension, Numeric

Explore = Callable[[Assignment, random.Random], Assignment]
FACTORS = (0.8, 1.2)
"""What a number is multiplied by where it is changed a little."""


class Pbt(Promotion):
    """Population-based training.

    The population are the `trials` of the search. After every `interval` all of them are compared. Each of the worst
    ends, and in its place a new trial begins with an exact copy of the run folder of one of the best (exploit) and
    with settings that are changed a little (explore); everybody else continues from its own checkpoint. The
    population is compared when all of it has come to the same budget, so with one worker the search is the same every
    time, and with several too, but for the numbers of trials.

    Args:
        interval: The budget between two comparisons.
        max_budget: What a trial has at the end.
        quantile: Which part of the population is replaced, and by copies of which part: 0.25 is the worst quarter by
            the best.
        resample: How likely a setting is drawn anew, and not changed a little.
        seed: Decides who is copied and how settings change.
        explore: Returns the settings of a copy from those of its source, in the place of all this.

    Raises:
        ConfigError: A number cannot be meant.
    """

    name = "pbt"

    def __init__(
        self,
        interval: int,
        max_budget: int,
        *,
        quantile: float = 0.25,
        resample: float = 0.25,
        seed: int = 0,
        explore: Explore | None = None,
    ) -> None:
        whole = all(isinstance(one, int) and not isinstance(one, bool) for one in (interval, max_budget))
        if not whole or not 0 < interval < max_budget:
            raise ConfigError(
                f"interval={interval!r} and max_budget={max_budget!r} must be whole numbers, 1 <= interval < max_budget"
            )
        super().__init__([*range(interval, max_budget, interval), max_budget])
        self.quantile = require_part("quantile", quantile, lambda part: 0 < part <= 0.5, "above 0 and at most 0.5")
        self.resample = require_part("resample", resample, lambda part: 0 <= part <= 1, "between 0 and 1")
        self.seed, self.explore = seed, explore

    def require_enough(self, trials: int) -> None:
        """Refuse a population of which nobody would be replaced."""
        if int(trials * self.quantile) < 1:
            raise ConfigError(
                f"trials={trials}: of such a population quantile={self.quantile:g} replaces nobody; take at least "
                f"{next(count for count in range(2, 1000) if int(count * self.quantile))}"
            )

    def next(self, members: Sequence[Member], trials: int) -> Move | None:
        """Return a copy, an end or a promotion where all of the population has come to a rung."""
        if sum(one.copied is None for one in members) < trials:
            return New()
        for rung in range(self.last + 1):
            entered = [one for one in members if _entered(one, rung)]
            if not all(one.settled(rung) for one in entered):
                return Wait()
            move = None if rung == self.last else self._at(rung, entered, members)
            if move is not None:
                return move
        return Wait() if any(one.state == RUNNING for one in members) else None

    def _at(self, rung: int, entered: Sequence[Member], members: Sequence[Member]) -> Move | None:
        """Return what is to be done at a rung that all have come to: first the copies, while their sources wait."""
        ranked = sorted((one for one in entered if rung in one.results), key=lambda one: one.results[rung])
        count = max(1, int(len(entered) * self.quantile))
        failed = [one for one in entered if rung not in one.results]
        best, worst = ranked[:count], [*failed, *reversed(ranked)][:count]
        replaced = {one.copied[2] for one in members if one.copied is not None and one.copied[1] == rung}
        for loser in worst:
            if loser.number not in replaced and loser not in best and best:
                return Copy(self._source(best, rung, loser).number, rung, loser.number)
        for one in entered:
            if one.state == PAUSED and one.goal == rung:
                return End(one.number) if one.number in replaced else Promote(one.number)
        return None

    def _source(self, best: Sequence[Member], rung: int, loser: Member) -> Member:
        chance = random.Random(fold_seed("exploit", self.seed, rung, loser.number))
        return best[chance.randrange(len(best))]

    def explored(self, searched: Searched, taken: Assignment, chance: random.Random) -> Assignment:
        """Return settings near those of the source, or others where the constraints refuse them."""
        if self.explore is not None:
            return self.explore(dict(taken), chance)
        for _ in range(100):
            changed = searched.decide(lambda dimension: self._changed(dimension, taken, chance))
            if searched.allows(changed):
                return changed
        return dict(taken)

    def _changed(self, dimension: Dimension, taken: Assignment, chance: random.Random) -> object:
        if dimension.label not in taken or chance.random() < self.resample:
            return dimension.sample(chance)
        value = taken[dimension.label]
        if isinstance(dimension, Numeric):
            return dimension.nearest(value * FACTORS[chance.randrange(2)])
        options = list(dimension.options())
        place = options.index(value) + (-1, 1)[chance.randrange(2)]
        return options[min(max(place, 0), len(options) - 1)]


def _entered(one: Member, rung: int) -> bool:
    """Whether a trial was trained for a rung: a copy begins behind that of its source, and a failed one had a goal."""
    first = 0 if one.copied is None else one.copied[1] + 1
    reached = one.goal if one.state in (PAUSED, RUNNING, FAILED) else max(one.results, default=-1)
    return first <= rung <= reached
