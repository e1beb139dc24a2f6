"""`instantiate`: make the calls that a config describes."""

import copy
from functools import partial
from typing import Any

from omegaconf import DictConfig, ListConfig

from treadle.config.nodes import TARGET, ConfigTuple, as_node, is_lazy, location, read
from treadle.config.signatures import HYDRA_KEYS, call_target, check_names, check_tree
from treadle.config.targets import title
from treadle.errors import ConfigError

_PLAIN_CONVERSIONS = ("all", "partial", "object")


class InstantiationError(ConfigError):
    """A call that a config describes failed; the error it failed with is the cause."""


def instantiate(config: Any, /, **arguments: Any) -> Any:
    """Build what `config` describes, from the inside out, and return it; the config is not changed.

    Lazy calls are made wherever they stand, inside dicts, lists and tuples too. Targets receive plain dicts, lists
    and tuples, never the containers of a config. Before the first call is made, all targets are found and the
    arguments of all calls checked. The keys of Hydra mean what they mean there: `_args_` (arguments without a name),
    `_partial_` (return a `functools.partial`) and `_recursive_` (leave the calls among the arguments unmade).

    >>> instantiate({"_target_": "fractions.Fraction", "numerator": 1}, denominator=3)
    Fraction(1, 3)

    Args:
        config: a lazy call, or anything that may hold some; what holds none is returned as plain data, None as None.
        arguments: for the outermost call, in place of those in the config; they are passed as they are, so a
            model or an optimizer need not be written into the config.

    Raises:
        InstantiationError: a call failed.
        ConfigError: a target cannot be found, or takes no such argument; a value is missing.
    """
    node = as_node(config) if isinstance(config, (dict, list, tuple)) else config
    if not isinstance(node, (DictConfig, ListConfig)):
        if arguments:
            raise ConfigError(f"instantiate got arguments for {node!r}, which is no lazy call")
        return node
    check_tree(node, load_targets=True, left_out=arguments)
    if not is_lazy(node):
        if arguments:
            raise ConfigError(f"{location(node)} is no lazy call, and takes no arguments; it needs {TARGET!r} for that")
        return _built(node, recursive=True)
    return _called(node, arguments)


def _built(value: Any, *, recursive: bool) -> Any:
    """Return a value of a config as plain data, with the calls in it made if `recursive`."""
    if is_lazy(value):
        return _called(value, {}) if recursive else copy.deepcopy(value)
    if isinstance(value, DictConfig):
        return {key: _built(read(value, key), recursive=recursive) for key in value}
    if isinstance(value, ListConfig):
        items = [_built(read(value, index), recursive=recursive) for index in range(len(value))]
        return tuple(items) if isinstance(value, ConfigTuple) else items
    return value


def _called(call: DictConfig, overrides: dict[str, Any]) -> Any:
    settings = {key: read(call, key) for key in call if key in HYDRA_KEYS and key not in overrides}
    settings |= {key: overrides[key] for key in HYDRA_KEYS & overrides.keys()}
    _check_conversion(call, settings)
    recursive = settings.get("_recursive_", True)
    target = _target(call)
    given = {key: value for key, value in overrides.items() if key not in HYDRA_KEYS}
    check_names(target, given, call)
    arguments = {
        str(key): _built(read(call, key), recursive=recursive)
        for key in call
        if key not in HYDRA_KEYS and key not in given
    }
    positional = _built(settings.get("_args_", ()), recursive=recursive)
    return _made(call, target, positional, {**arguments, **given}, later=settings.get("_partial_", False))


def _target(call: DictConfig) -> Any:
    found = call_target(call, load=True)
    return _called(read(call, TARGET), {}) if found is None else found


def _made(call: DictConfig, target: Any, positional: Any, arguments: dict[str, Any], *, later: bool) -> Any:
    if later:
        return partial(target, *positional, **arguments)
    try:
        made = target(*positional, **arguments)
    except Exception as error:
        raise InstantiationError(
            f"{location(call)}: calling {title(target)} failed: {type(error).__name__}: {error}"
        ) from error
    if target is dict and TARGET in made:
        # Whoever looked through the config for what it calls, as the commands do, has not seen this one.
        raise ConfigError(
            f"{location(call)} makes a lazy call of {made[TARGET]!r} out of pairs; write it as a mapping with "
            f"{TARGET!r}"
        )
    return made


def _check_conversion(call: DictConfig, settings: dict[str, Any]) -> None:
    asked = settings.get("_convert_", "all")
    if asked not in _PLAIN_CONVERSIONS:
        raise ConfigError(
            f"{location(call, '_convert_')} is {asked!r}, but targets always receive plain dicts, lists and tuples; "
            "remove it"
        )
