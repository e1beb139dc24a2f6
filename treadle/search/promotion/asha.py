"""Asynchronous successive halving: a trial continues as soon as it is among the best of its rung so far."""

from collections.abc import Sequence

from treadle.errors import ConfigError
from treadle.search.promotion.base import PAUSED, RUNNING, Member, Move, New, Promote, Promotion, Wait, ladder


class Asha(Promotion):
    """Asynchronous successive halving: no worker ever waits for the others of a cohort.

    Whoever asks for work gets, from the highest rung down, the best paused trial that is among the best of all that
    came to its rung so far, one of `reduction`; where there is none, a new trial. So a trial may be promoted that
    later ones turn out to be better than, and paused trials stay paused: a search with more `trials` may promote them.

    Args:
        min_budget: The smallest budget, in whatever the trials count: epochs, iterations, samples.
        max_budget: What a trial has at the end.
        reduction: One of so many continues to the next rung, whose budget is so many times as large.
        budgets: The budget of each rung, in the place of the smallest and the largest.
    """

    name = "asha"

    def __init__(
        self,
        min_budget: int | None = None,
        max_budget: int | None = None,
        reduction: int = 3,
        *,
        budgets: Sequence[int] | None = None,
    ) -> None:
        super().__init__(ladder(min_budget, max_budget, reduction, budgets))
        self.reduction = reduction

    def require_enough(self, trials: int) -> None:
        """Refuse a number of trials of which none would come to the last rung."""
        needed = self.reduction**self.last
        if trials < needed:
            raise ConfigError(
                f"trials={trials}: with {len(self.budgets)} rungs {list(self.budgets)} and reduction={self.reduction} "
                f"no trial comes to the last one before there are {needed}; take more trials, or a larger min_budget"
            )

    def next(self, members: Sequence[Member], trials: int) -> Move | None:
        """Return a promotion where one is due, else a new trial."""
        for rung in range(self.last - 1, -1, -1):
            arrived = sorted((one for one in members if rung in one.results), key=lambda one: one.results[rung])
            for one in arrived[: len(arrived) // self.reduction]:
                if one.state == PAUSED and one.goal == rung:
                    return Promote(one.number)
        if len(members) < trials:
            return New()
        return Wait() if any(one.state == RUNNING for one in members) else None
