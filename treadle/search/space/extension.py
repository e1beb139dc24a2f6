"""What a pack brings to a search: values that decisions make, restrictions, what a trial is given and leaves behind."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from treadle.search.assignment import Assignment
from treadle.search.space.dimensions import Dimension
from treadle.search.store.history import Outcome


class OpenValue:
    """A value in a config that is made of decisions, such as an expression of choices."""

    stands_for_a_setting: ClassVar[bool] = True
    """A config file may have it at its top, in the place of a value."""

    def dimensions(self, label: str) -> list[Dimension]:
        """Return what there is to decide; a decision without a name of its own is called `label`."""
        raise NotImplementedError

    def evaluate(self, taken: Mapping[str, Any]) -> Any:
        """Return the value that comes of what was decided."""
        raise NotImplementedError


class Restriction:
    """What every combination of values must satisfy; it may stand anywhere in a config, which trials get without it."""

    stands_for_a_setting: ClassVar[bool] = True

    def require_known(self, known: Iterable[str]) -> None:
        """Refuse to look at decisions that there are not."""
        raise NotImplementedError

    def satisfied(self, taken: Assignment) -> bool:
        """Whether a combination may be."""
        raise NotImplementedError


class TrialTarget(Protocol):
    """What a trial is given; a class method `decoded` makes it of what `encoded` wrote, in another process."""

    def build(self) -> Any:
        """Return what is judged."""

    def encoded(self) -> dict[str, Any]:
        """Return it as JSON.

        Raises:
            ConfigError: Another process could not make it again.
        """

    def leave(self, built: Any) -> None:
        """Keep what the trial is to leave behind, once what was built has been judged."""


class TrialWeights:
    """What trials leave behind, and others begin with; here nothing."""

    def is_left(self, number: int) -> bool:
        """Whether a trial has left what it was to leave."""
        return True

    def nearest(self, taken: Assignment, proposed: int | None, outcomes: Sequence[Outcome]) -> int | None:
        """Return the number of the trial that another begins with; None if it begins with nothing.

        Args:
            taken: What was decided for the other.
            proposed: Which one the strategy made it of, if any.
            outcomes: The results so far.
        """
        return None

    def handed(self, subject: TrialTarget, number: int, inherits: int | None) -> TrialTarget:
        """Return what a trial is given, with what it begins with and where it leaves what comes of it.

        Args:
            subject: What it was to be given.
            number: Its number.
            inherits: The number of the trial that it begins with; None begins with nothing.
        """
        return subject
