"""Successive halving and Hyperband: cohorts of trials, of which the best part reaches each next rung."""

import math
from collections.abc import Iterator, Sequence
from itertools import repeat

from treadle.errors import ConfigError
from treadle.search.promotion.base import PAUSED, End, Member, Move, New, Promote, Promotion, Wait, ladder


class Halving(Promotion):
    """Successive halving: a cohort of trials gets the smallest budget, and the best of each rung continue to the next.

    A trial that continues does so from its own checkpoint. The others end as pruned. A cohort is decided when all of
    its trials have come to a rung, so with one worker the search is the same every time.

    >>> Halving(1, 27).budgets
    (1, 3, 9, 27)

    Args:
        min_budget: The smallest budget, in whatever the trials count: epochs, iterations, samples.
        max_budget: What a trial has at the end.
        reduction: One of so many continues to the next rung, whose budget is so many times as large.
        budgets: The budget of each rung, in the place of the smallest and the largest.
        cohort: How many trials begin together; by default as many as lead to one at the last rung. The last cohort has
            what is left of the `trials` of the search.

    Raises:
        ConfigError: There are not two rungs, or a number cannot be meant.
    """

    name = "halving"

    def __init__(
        self,
        min_budget: int | None = None,
        max_budget: int | None = None,
        reduction: int = 3,
        *,
        budgets: Sequence[int] | None = None,
        cohort: int | None = None,
    ) -> None:
        super().__init__(ladder(min_budget, max_budget, reduction, budgets))
        self.reduction = reduction
        self.cohort = reduction**self.last if cohort is None else cohort
        if isinstance(self.cohort, bool) or not isinstance(self.cohort, int) or self.cohort < 2:
            raise ConfigError(f"cohort={cohort!r} must be a whole number from 2 up")

    def cohorts(self) -> Iterator[tuple[int, int]]:
        """Yield how many trials each cohort has, and the rung that they begin with."""
        return repeat((self.cohort, 0))

    def next(self, members: Sequence[Member], trials: int) -> Move | None:
        """Return the next move of the first cohort that has one."""
        begin, waits = 0, False
        for size, rung in self.cohorts():
            size = min(size, trials - begin)
            if size <= 0:
                break
            own = members[begin : begin + size]
            if len(own) < size:
                return New(rung)
            move = self._decided(own, rung)
            if move is not None and not isinstance(move, Wait):
                return move
            waits = waits or move is not None
            begin += size
        return Wait() if waits else None

    def _decided(self, cohort: Sequence[Member], first: int) -> Move | None:
        """Return what is to be done in a cohort that has begun: rung by rung, the best of those that entered it."""
        entered = list(cohort)
        for rung in range(first, self.last + 1):
            if not all(one.settled(rung) for one in entered):
                return Wait()
            if rung == self.last:
                break
            ranked = sorted((one for one in entered if rung in one.results), key=lambda one: one.results[rung])
            kept = {one.number for one in ranked[: max(1, len(entered) // self.reduction)]}
            for one in entered:
                if one.state == PAUSED and one.goal == rung:
                    return Promote(one.number) if one.number in kept else End(one.number)
            entered = [one for one in entered if one.number in kept]
        return None


class Hyperband(Halving):
    """Hyperband: cohorts of successive halving that begin with different budgets, one after the other.

    The first has many trials and begins with the smallest budget; the last has few, which get the largest at once.
    Where a small budget says little of a large one, the later cohorts are those that find it.

    Args:
        min_budget: The smallest budget.
        max_budget: What a trial has at the end.
        reduction: One of so many continues to the next rung.
        budgets: The budget of each rung, in the place of the smallest and the largest.
    """

    name = "hyperband"

    def __init__(
        self,
        min_budget: int | None = None,
        max_budget: int | None = None,
        reduction: int = 3,
        *,
        budgets: Sequence[int] | None = None,
    ) -> None:
        super().__init__(min_budget, max_budget, reduction, budgets=budgets)

    def cohorts(self) -> Iterator[tuple[int, int]]:
        """Yield the cohorts of one round after the other."""
        while True:
            for first in range(self.last + 1):
                left = self.last - first
                yield math.ceil((self.last + 1) / (left + 1) * self.reduction**left), first
