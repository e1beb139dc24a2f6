"""From what a user calls a space to what is searched, and to what each trial is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.search.assignment import Assignment
from treadle.search.extension import TrialWeights
from treadle.search.placing import constraints_in, dimensions_in, has_domains, with_values
from treadle.search.recorded_names import Names
from treadle.search.recorded_values import build, decode, encode
from treadle.search.searched import Searched


@dataclass(frozen=True)
class Value:
    """A config, or plain data, with a value in the place of every domain.

    Attributes:
        value: It.
    """

    value: Any

    def build(self) -> Any:
        """Return it; if it is a lazy call as a whole, what the call makes."""
        return build(self.value) if is_lazy_call(self.value) else self.value

    def encoded(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"value": encode(self.value, "the config")}

    @staticmethod
    def decoded(data: Mapping[str, Any], names: Names) -> "Value":
        """Return what `encoded` wrote."""
        return Value(decode(data["value"], names))

    def leave(self, built: Any) -> None:
        """Leave nothing: a config does not change."""


class ConfigSearched(Searched):
    """A config, or plain data, with domains in it.

    Args:
        given: It.
        prefix: What the names of its decisions begin with.
    """

    def __init__(self, given: Any, prefix: str = "") -> None:
        self.given, self.prefix = given, prefix
        self.dimensions = dimensions_in(given, prefix)
        self.constraints = [constraint for _, constraint in constraints_in(given)]
        for constraint in self.constraints:
            constraint.require_known(self.dimensions)

    def allows(self, taken: Assignment) -> bool:
        """Whether all constraints are satisfied."""
        return all(constraint.satisfied(taken) for constraint in self.constraints)

    @property
    def is_conditional(self) -> bool:
        """Whether some combinations of values are not to be had."""
        return bool(self.constraints)

    def task(self, taken: Assignment) -> Value:
        """Return the config with values."""
        return Value(with_values(self.given, taken, self.prefix))


class Both(Searched):
    """Two things that are searched together, such as a network and how it is trained.

    Args:
        first: The one.
        second: The other.

    Raises:
        ConfigError: They have a name in common.
    """

    def __init__(self, first: Searched, second: Searched) -> None:
        self.first, self.second = first, second
        shared = sorted(first.dimensions.keys() & second.dimensions.keys())
        if shared:
            raise ConfigError(f"the space and the trainer both have a decision called {shared[0]!r}; rename one")
        self.dimensions = {**first.dimensions, **second.dimensions}

    def exists(self, label: str, taken: Mapping[str, Any]) -> bool:
        """Whether a decision is to be made, given those before it."""
        return self._part(label).exists(label, taken)

    def allows(self, taken: Assignment) -> bool:
        """Whether all constraints are satisfied."""
        return all(part.allows(self.own(part, taken)) for part in (self.first, self.second))

    @property
    def is_conditional(self) -> bool:
        """Whether some combinations of values are not to be had."""
        return self.first.is_conditional or self.second.is_conditional

    def task(self, taken: Assignment) -> Any:
        """Return what the first of them needs; the second is asked by whoever put them together."""
        return self.first.task(self.own(self.first, taken))

    def fixed(self) -> dict[str, Any]:
        """Return what must stay as it is of both."""
        return {**self.first.fixed(), **self.second.fixed()}

    def picture(self, taken: Assignment, title: str) -> str | None:
        """Return a drawing of what was decided for the first."""
        return self.first.picture(self.own(self.first, taken), title)

    def weights(self, folder: Path, *, inherit: bool) -> TrialWeights:
        """Return what trials leave behind of the first."""
        return self.first.weights(folder, inherit=inherit)

    def require_guess(self) -> None:
        """Refuse a first that nothing can be guessed of before a trial."""
        self.first.require_guess()

    def own(self, part: Searched, taken: Assignment) -> Assignment:
        """Return what was decided for one of the two."""
        return {label: value for label, value in taken.items() if label in part.dimensions}

    def _part(self, label: str) -> Searched:
        return self.first if label in self.first.dimensions else self.second


def searched_of(space: Any) -> Searched:
    """Return what is searched.

    Args:
        space: A config or dict with domains, or what a pack makes of a space of its own.

    Raises:
        ConfigError: There is nothing to decide in it.
    """
    if isinstance(space, Searched):
        return space
    if has_domains(space):
        return ConfigSearched(space)
    if is_config(space):
        raise ConfigError(
            "there is nothing to decide in the config; put nas.one_of(...), nas.uniform(...), nas.log_uniform(...) or "
            "nas.integer(...) in the place of a value"
        )
    raise ConfigError(
        f"the space is {space!r}; give a config or dict with domains such as one_of(1, 2) in it; a model with choices "
        "in it is searched by nas.Search"
    )


def is_config(space: Any) -> bool:
    """Whether something is a config or plain data, whatever there is to decide in it."""
    if isinstance(space, (dict, list, tuple)) or (hasattr(space, "_content") and not is_lazy_call(space)):
        return True
    return has_domains(space)


def is_lazy_call(value: Any) -> bool:
    """Whether a value is a lazy call."""
    if not hasattr(value, "_content"):
        return False
    from treadle.config.nodes import is_lazy

    return is_lazy(value)
