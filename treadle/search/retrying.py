"""Which failed trials are run again."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError
from treadle.search.history import ERROR, RETRIED

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


class Retrying:
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

    def due(self, trials: "Sequence[FrozenTrial]") -> "FrozenTrial | None":
        """Return the first trial that is to be run again: it failed, and so did every attempt after it."""
        if not self.times:
            return None
        attempts: dict[int, list[FrozenTrial]] = {}
        for trial in trials:
            attempts.setdefault(first_number(trial), []).append(trial)
        for made in attempts.values():
            last = made[-1]
            if last.state.name == "FAIL" and len(made) <= self.times and self._is_worth_it(last.user_attrs):
                return last
        return None

    def _is_worth_it(self, attributes: Mapping[str, Any]) -> bool:
        return self.kinds is None or attributes.get(ERROR, {}).get("kind") in self.kinds


def first_number(trial: "FrozenTrial") -> int:
    """Return the number that a trial had when it was first tried."""
    return int(trial.user_attrs.get(RETRIED, trial.number))


def _name(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return kind.__name__
    raise ConfigError(f"retry_on has {kind!r}; give classes of errors, or their names")
