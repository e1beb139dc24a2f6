"""What every architecture of a space must satisfy."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from treadle.errors import ConfigError, did_you_mean
from treadle.nas.decisions import Architecture
from treadle.nas.expressions import FREEZING, Expression, Leaf, copied
from treadle.search.extension import Restriction


class Constraint(Restriction):
    """What every architecture must satisfy: an attribute of a module of the space, or a value in a dict space.

    Where a decision that it speaks of does not exist, because another branch was taken, it is satisfied.

    Args:
        test: An expression, or a function of an architecture.
        labels: The decisions that a function looks at.
        reason: What is wrong with an architecture that fails, for messages.

    Raises:
        ConfigError: It is a function, and the labels are missing.
    """

    def __init__(
        self,
        test: Expression | Callable[[Architecture], Any],
        *,
        labels: Sequence[str] | None = None,
        reason: str = "",
    ) -> None:
        if not isinstance(test, Expression) and labels is None:
            raise ConfigError("a Constraint that is a function must say which labels= it looks at")
        self._test, self._labels = test, tuple(labels or ())
        self.reason = reason or f"{test!r} does not hold"

    def expressions(self) -> list[Leaf]:
        """Return the decisions that it uses as expressions."""
        return self._test.leaves() if isinstance(self._test, Expression) else []

    @property
    def labels(self) -> tuple[str, ...]:
        """The decisions that it looks at."""
        return (*self._labels, *(leaf.key for leaf in self.expressions()))

    def require_known(self, known: Iterable[str]) -> None:
        """Refuse labels that no decision of a space has: such a constraint would hold for ever.

        Raises:
            ConfigError: It looks at a decision that is not in the space.
        """
        known = list(known)
        for label in self.labels:
            if label not in known:
                near = did_you_mean(label, known)
                raise ConfigError(
                    f"a Constraint looks at {label!r}, which the space does not decide{near or f'; it decides {known}'}"
                )

    def satisfied(self, architecture: Architecture) -> bool:
        """Whether an architecture may be."""
        if any(label not in architecture for label in self.labels):
            return True
        if isinstance(self._test, Expression):
            return bool(self._test.evaluate(architecture))
        return bool(self._test(architecture))

    def __deepcopy__(self, memo: dict[Any, Any]) -> "Constraint | None":
        """Return a copy; in a frozen network nothing is left of it."""
        return None if FREEZING in memo else copied(self, memo)
