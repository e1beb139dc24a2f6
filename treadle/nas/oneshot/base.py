"""The parent of everything that searches and trains at once."""

import abc
from typing import Any


class BaseOneShotTrainer(abc.ABC):
    """Trains a space, choices and all, and says which architecture it found.

    It has no state: a subclass need not call `super().__init__()`, and takes whatever arguments it likes.
    """

    @abc.abstractmethod
    def fit(self) -> Any:
        """Train and search."""

    @abc.abstractmethod
    def export(self) -> Any:
        """Return the best architecture: plain data, by label."""
