"""Strategies: how the next trial is chosen."""

from abc import ABC, abstractmethod

from treadle.search.assignment import Assignment
from treadle.search.store.history import Proposal


class ExhaustedError(Exception):
    """Not an error: there is nothing left to propose."""


class Strategy(ABC):
    """Chooses the next trial from what is known.

    A strategy keeps nothing between trials: all it knows it is told, so that a search that was killed goes on exactly
    where it was.
    """

    name: str

    @abstractmethod
    def propose(self, proposal: Proposal) -> Assignment:
        """Return the values of the next trial.

        Raises:
            ExhaustedError: There is nothing left.
        """


class Random(Strategy):
    """Draws every decision by itself, by its weights."""

    name = "random"

    def propose(self, proposal: Proposal) -> Assignment:
        """Return a random draw."""
        return proposal.searched.sample(proposal.chance)
