"""Domains in a config: where they stand, and the config with values in their places."""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.search.assignment import Assignment
from treadle.search.encoding import RecordedNames, build, decode, encode
from treadle.search.space.base import Searched
from treadle.search.space.dimensions import Categorical, Dimension, make_dimension
from treadle.search.space.domains import Choice, Range
from treadle.search.space.extension import OpenValue, Restriction, TrialWeights

Place = tuple[Any, ...]
"""The keys and indices that lead from the root of a config to a value in it."""

_DOMAINS = (Choice, Range, OpenValue)
_MAKERS = re.compile(r"treadle\.(\w+\.)*(one_of|uniform|log_uniform|integer)")
"""What a YAML file calls to have a domain: these functions, by any name that leads to them."""


def find_domains(tree: Any) -> Iterator[tuple[Place, Any]]:
    """Yield every domain in a config, or in plain dicts, lists and tuples, with its place."""
    return ((place, one) for place, one in _open_parts(tree) if not isinstance(one, Restriction))


def find_constraints(tree: Any) -> Iterator[tuple[Place, Restriction]]:
    """Yield every constraint in a config, or in plain dicts, lists and tuples, with its place."""
    return ((place, one) for place, one in _open_parts(tree) if isinstance(one, Restriction))


def _open_parts(tree: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    value = _value(tree)
    found = value if isinstance(value, (*_DOMAINS, Restriction)) else _made_from_text(value)
    if found is not None:
        yield place, found
        return
    for key, item in _items(value):
        yield from _open_parts(item, (*place, key))


def has_domains(tree: Any) -> bool:
    """Whether there is anything to decide in a config."""
    return next(find_domains(tree), None) is not None


def branches(domain: Any) -> dict[str, Any] | None:
    """Return the values of a choice by name, if some of them leave things to decide themselves; None if none does.

    A mapping is called by the first text in it, `{"kind": "sgd", "momentum": ...}` by `sgd`; anything else, or where
    two are called alike, by its place.
    """
    if not isinstance(domain, Choice) or not any(has_domains(value) for value in domain.values):
        return None
    names = [_branch_name(value) for value in domain.values]
    if None in names or len(set(names)) < len(names):
        names = [str(place) for place in range(len(names))]
    return dict(zip(map(str, names), domain.values, strict=True))


def _branch_name(value: Any) -> str | None:
    """Return what a value is called: a text, or the first text of a mapping that is a word."""
    if isinstance(value, str):
        return value
    texts = [item for _, item in _items(value) if isinstance(item, str)] if isinstance(value, dict) else []
    return next((text for text in texts if text.isidentifier()), None)


def _of_branch(label: str, name: str) -> str:
    return f"{label}.{name}."


def find_conditions(tree: Any, prefix: str = "") -> dict[str, tuple[str, str]]:
    """Return what decides whether others exist: for each of these the choice it stands in, and the value of that."""
    found: dict[str, tuple[str, str]] = {}
    for place, domain in find_domains(tree):
        label = prefix + config_key(place)
        for name, value in (branches(domain) or {}).items():
            inner = find_conditions(value, _of_branch(label, name))
            own = find_dimensions(value, _of_branch(label, name))
            found.update({one: (label, name) for one in own if one not in inner})
            found.update(inner)
    return found


def find_dimensions(tree: Any, prefix: str = "") -> dict[str, Dimension]:
    """Return what there is to decide in a config, by name: the place of each, or the label of a `ValueChoice`.

    Raises:
        ConfigError: A label stands for different values.
    """
    found: dict[str, Dimension] = {}
    for place, domain in find_domains(tree):
        for dimension in _dimensions(prefix + config_key(place), domain):
            known = found.setdefault(dimension.label, dimension)
            if known.described() != dimension.described():
                raise ConfigError(
                    f"the label {dimension.label!r} stands for {known.described()} and for {dimension.described()}; "
                    "give one of them another label"
                )
    return found


def fill_values(tree: Any, taken: Mapping[str, Any], prefix: str = "") -> Any:
    """Return a copy of a config in which each domain is replaced by its value, without the constraints."""
    places = list(find_domains(tree))
    if places and not places[0][0]:
        return _decided(places[0][1], prefix, taken)
    if not places and not isinstance(tree, (dict, list, tuple)) and not hasattr(tree, "_content"):
        return tree
    copied = _thawed(copy.deepcopy(tree))
    for place, domain in places:
        copied = _put(copied, place, _decided(domain, prefix + config_key(place), taken))
    for place, _ in reversed(list(find_constraints(tree))):
        copied = _removed(copied, place)
    return copied


def config_key(place: Place) -> str:
    """Return a place as it is written in overrides.

    >>> config_key(("model", "layers", 0, "width"))
    'model.layers[0].width'
    """
    text = ""
    for key in place:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text


def _dimensions(label: str, domain: Any) -> list[Dimension]:
    if isinstance(domain, OpenValue):
        return domain.dimensions(label)
    named = branches(domain)
    if named is None:
        return [make_dimension(label, domain)]
    inner = [find_dimensions(value, _of_branch(label, name)) for name, value in named.items()]
    return [Categorical(label, list(named), domain.weights), *(one for found in inner for one in found.values())]


def _decided(domain: Any, label: str, taken: Mapping[str, Any]) -> Any:
    if isinstance(domain, OpenValue):
        return domain.evaluate(taken)
    named = branches(domain)
    return taken[label] if named is None else fill_values(named[taken[label]], taken, _of_branch(label, taken[label]))


def _value(node: Any) -> Any:
    """Return what a node of a config holds; containers and plain values as they are."""
    is_leaf = hasattr(node, "_value") and hasattr(node, "_metadata") and not hasattr(node, "_content")
    return node._value() if is_leaf else node


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if hasattr(value, "_content"):
        from treadle.config.nodes import children

        return children(value)
    return []


def _made_from_text(value: Any) -> Any:
    """Return the domain that a lazy call of its maker describes; None if it is something else."""
    target = value.get("_target_") if isinstance(value, dict) else None
    if hasattr(value, "_content"):
        from treadle.config.nodes import is_lazy

        node: Any = value._get_node("_target_") if is_lazy(value) else None
        target = None if node is None else node._value()
    is_named = isinstance(target, str) and _MAKERS.fullmatch(target) is not None
    if not is_named and getattr(target, "__module__", "") != "treadle.search.space.domains":
        return None
    from treadle.config import instantiate

    return instantiate(value)


def _thawed(tree: Any) -> Any:
    if hasattr(tree, "_content"):
        from omegaconf import OmegaConf

        OmegaConf.set_readonly(tree, False)
    return tree


def _removed(tree: Any, place: Place) -> Any:
    """Return the tree without what is at a place."""
    key, rest = place[0], place[1:]
    if rest:
        inner = tree._get_node(key) if hasattr(tree, "_content") else tree[key]
        return _put(tree, (key,), _removed(inner, rest))
    if type(tree) is tuple:
        return (*tree[:key], *tree[key + 1 :])
    del tree[key]
    return tree


def _put(tree: Any, place: Place, value: Any) -> Any:
    """Return the tree with a value at a place; tuples on the way are made anew."""
    key, rest = place[0], place[1:]
    inner = tree._get_node(key) if hasattr(tree, "_content") else tree[key]
    item = _put(inner, rest, value) if rest else value
    if type(tree) is tuple:
        return (*tree[:key], item, *tree[key + 1 :])
    if item is not inner:
        tree[key] = item
    return tree


# From what a user calls a space to what is searched, and to what each trial is given


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
    def decoded(data: Mapping[str, Any], names: RecordedNames) -> "Value":
        """Return what `encoded` wrote."""
        return Value(decode(data["value"], names))

    def leave(self, built: Any) -> None:
        """Leave nothing: a config does not change."""


class ConfigSpace(Searched):
    """A config, or plain data, with domains in it.

    Args:
        given: It.
        prefix: What the names of its decisions begin with.
    """

    def __init__(self, given: Any, prefix: str = "") -> None:
        self.given, self.prefix = given, prefix
        self.dimensions = find_dimensions(given, prefix)
        self.conditions = find_conditions(given, prefix)
        self.constraints = [constraint for _, constraint in find_constraints(given)]
        for constraint in self.constraints:
            constraint.require_known(self.dimensions)

    def exists(self, label: str, taken: Mapping[str, Any]) -> bool:
        """Whether a decision is to be made: one within a value of a choice is where this value was chosen."""
        holder = self.conditions.get(label)
        return holder is None or taken.get(holder[0]) == holder[1]

    def allows(self, taken: Assignment) -> bool:
        """Whether all constraints are satisfied."""
        return all(constraint.satisfied(taken) for constraint in self.constraints)

    @property
    def is_conditional(self) -> bool:
        """Whether some combinations of values are not to be had."""
        return bool(self.constraints or self.conditions)

    def task(self, taken: Assignment) -> Value:
        """Return the config with values."""
        return Value(fill_values(self.given, taken, self.prefix))


class JointSpace(Searched):
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

    def require_proxy_support(self) -> None:
        """Refuse a first that nothing can be guessed of before a trial."""
        self.first.require_proxy_support()

    def own(self, part: Searched, taken: Assignment) -> Assignment:
        """Return what was decided for one of the two."""
        return {label: value for label, value in taken.items() if label in part.dimensions}

    def _part(self, label: str) -> Searched:
        return self.first if label in self.first.dimensions else self.second


def as_search_space(space: Any) -> Searched:
    """Return what is searched.

    Args:
        space: A config or dict with domains, or what a pack makes of a space of its own.

    Raises:
        ConfigError: There is nothing to decide in it.
    """
    if isinstance(space, Searched):
        return space
    if has_domains(space):
        return ConfigSpace(space)
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
