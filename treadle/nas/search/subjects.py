"""From what a user calls a space to what is searched, and to what each trial is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from treadle.errors import ConfigError
from treadle.nas.classic_names import Names
from treadle.nas.classic_values import build, decode, encode
from treadle.nas.decisions import Architecture, Decision, Subset
from treadle.nas.freezing import freeze
from treadle.nas.search.dimensions import Categorical, Dimension
from treadle.nas.search.placing import constraints_in, dimensions_in, has_domains, with_values
from treadle.nas.search.searched import Searched
from treadle.nas.space import Space


@dataclass(frozen=True)
class Network:
    """An architecture of a space of networks.

    Attributes:
        space: The space, or what makes it.
        architecture: What was decided.
    """

    space: Any
    architecture: Architecture

    def build(self) -> Any:
        """Return the network."""
        return freeze(made_space(self.space), self.architecture)

    def encoded(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"space": encode(self.space, "the space"), "architecture": self.architecture}


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


Subject = Network | Value


def decoded_subject(data: Mapping[str, Any], names: Names) -> Subject:
    """Return what `encoded` wrote."""
    if "value" in data:
        return Value(decode(data["value"], names))
    return Network(decode(data["space"], names), dict(data["architecture"]))


class NetworkSearched(Searched):
    """A space of networks.

    Args:
        given: The space, a lazy call of it, or a class or function without arguments that makes it.

    Raises:
        ConfigError: It is no model, or there is nothing to decide in it.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.space = Space(made_space(given))
        if not self.space.decisions:
            raise ConfigError(
                f"there is nothing to decide in {type(self.space.model).__name__}; put a LayerChoice, an InputChoice "
                "or a ValueChoice into it"
            )
        self.dimensions: dict[str, Dimension] = {
            label: Categorical(label, list(decision.options()), _weights(decision))
            for label, decision in self.space.decisions.items()
        }

    def exists(self, label: str, taken: Mapping[str, Any]) -> bool:
        """Whether a decision is to be made, given those before it."""
        return self.space.exists(label, taken)

    def allows(self, taken: Architecture) -> bool:
        """Whether all constraints are satisfied."""
        return self.space.allows(taken)

    @property
    def is_conditional(self) -> bool:
        """Whether some combinations of values are not to be had."""
        return bool(self.space.constraints) or any(self.space.depends_on(label) for label in self.dimensions)

    def task(self, taken: Architecture) -> Network:
        """Return how a trial builds the network."""
        return Network(self.given, taken)


def _weights(decision: Decision) -> tuple[float, ...] | None:
    # The weights of a subset are those of its members; only where one is taken are they those of the values.
    return None if isinstance(decision, Subset) and decision.chosen != 1 else decision.weights


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

    def allows(self, taken: Architecture) -> bool:
        """Whether all constraints are satisfied."""
        return all(constraint.satisfied(taken) for constraint in self.constraints)

    @property
    def is_conditional(self) -> bool:
        """Whether some combinations of values are not to be had."""
        return bool(self.constraints)

    def task(self, taken: Architecture) -> Value:
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

    def allows(self, taken: Architecture) -> bool:
        """Whether all constraints are satisfied."""
        return all(part.allows(self.own(part, taken)) for part in (self.first, self.second))

    @property
    def is_conditional(self) -> bool:
        """Whether some combinations of values are not to be had."""
        return self.first.is_conditional or self.second.is_conditional

    def task(self, taken: Architecture) -> Any:
        """Return what the first of them needs; the second is asked by whoever put them together."""
        return self.first.task(self.own(self.first, taken))

    def own(self, part: Searched, taken: Architecture) -> Architecture:
        """Return what was decided for one of the two."""
        return {label: value for label, value in taken.items() if label in part.dimensions}

    def _part(self, label: str) -> Searched:
        return self.first if label in self.first.dimensions else self.second


def made_space(given: Any) -> nn.Module:
    """Return the model of a space, made anew where something makes it.

    Raises:
        ConfigError: It is none.
    """
    made = given
    if is_lazy_call(given):
        made = build(given)
    elif not isinstance(given, nn.Module) and callable(given):
        made = given()
    if not isinstance(made, nn.Module):
        raise ConfigError(
            f"the space is {made!r}; give a model with choices in it, a class or LazyCall that makes one, or a config "
            "or dict with domains such as nas.one_of(1, 2) in it"
        )
    return made


def searched_of(space: Any) -> Searched:
    """Return what is searched.

    Args:
        space: A model with choices in it, a class or lazy call that makes one, or a config or dict with domains.

    Raises:
        ConfigError: There is nothing to decide in it.
    """
    if isinstance(space, Searched):
        return space
    if has_domains(space):
        return ConfigSearched(space)
    if isinstance(space, (dict, list, tuple)) or (hasattr(space, "_content") and not is_lazy_call(space)):
        raise ConfigError(
            "there is nothing to decide in the config; put nas.one_of(...), nas.uniform(...), nas.log_uniform(...) or "
            "nas.integer(...) in the place of a value"
        )
    return NetworkSearched(space)


def is_lazy_call(value: Any) -> bool:
    """Whether a value is a lazy call."""
    if not hasattr(value, "_content"):
        return False
    from treadle.config.nodes import is_lazy

    return is_lazy(value)
