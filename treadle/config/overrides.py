"""Overrides, as a command line gives them: `key=value` changes, `+key=value` adds, `~key` removes."""

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from omegaconf import DictConfig, ListConfig, Node, OmegaConf, open_dict

from treadle.config.arguments import default_value, known_names
from treadle.config.nodes import TARGET, ConfigDict, children, is_lazy, location
from treadle.config.signatures import call_target, check_tree
from treadle.config.targets import title
from treadle.config.truth import parse_bool
from treadle.errors import ConfigError

# The value of an override, as written on a command line: Hydra's grammar, and tuples


_TUPLE = "__tuple__"
_QUOTES = "\"'"


def parse_value(text: str, override: str) -> Any:
    """Return what the text to the right of `=` stands for.

    >>> parse_value("[1, 2.5, null, true, abc]", "a=...")
    [1, 2.5, None, True, 'abc']
    >>> parse_value("{betas: (0.9, 0.95)}", "a=...")
    {'betas': (0.9, 0.95)}
    >>> parse_value("x=y", "a=...")
    'x=y'

    Args:
        text: the value.
        override: the whole override, for messages.

    Raises:
        ConfigError: it is no value, or a sweep over several.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(f"key={_with_tuples_marked(text)}")
    except HydraException as error:
        if "=" in text and text[0] not in f"[{{({_QUOTES}":
            return text  # Hydra has no rule for key=a=b; only text can be meant
        raise ConfigError(f"{override!r} cannot be read; put quotes around text: {_quoted(override, text)}") from error
    if parsed.is_sweep_override():
        raise ConfigError(
            f"{override!r} lists several values; write [...] for a list, (...) for a tuple, or quotes for text: "
            f"{_quoted(override, text)}"
        )
    return _with_tuples_made(parsed.value())


def _quoted(override: str, text: str) -> str:
    escaped = text.replace('"', '\\"')
    return f"""'{override.removesuffix(text)}"{escaped}"'"""


def _with_tuples_marked(text: str) -> str:
    """Return the text with `(1, 2)` written as `{__tuple__:[1, 2]}`, which Hydra's grammar has a rule for."""
    written: list[str] = []
    closings: list[str] = []
    position = 0
    while position < len(text):
        length = _literal_length(text, position)
        if length:
            written.append(text[position : position + length])
            position += length
            continue
        character = text[position]
        if character == "(":
            is_function = "".join(written).rstrip()[-1:].replace("_", "a").isalnum()
            written.append("(" if is_function else "{" + _TUPLE + ":[")
            closings.append(")" if is_function else "]}")
        elif character == ")" and closings:
            inner = "".join(written).rstrip()
            written = [inner.removesuffix(",") if closings[-1] == "]}" else inner, closings.pop()]
        else:
            written.append(character)
        position += 1
    return "".join(written)


def _literal_length(text: str, position: int) -> int:
    """Return how many characters from here on are to be taken as they are: quoted, escaped, or `${...}`."""
    if text[position] == "\\":
        return 2
    if text.startswith("${", position):
        return max(0, text.find("}", position) + 1 - position)
    if text[position] not in _QUOTES:
        return 0
    end = position + 1
    while end < len(text) and text[end] != text[position]:
        end += 2 if text[end] == "\\" else 1
    return end + 1 - position


def _with_tuples_made(value: Any) -> Any:
    if isinstance(value, dict):
        if list(value) == [_TUPLE]:
            return tuple(_with_tuples_made(item) for item in value[_TUPLE])
        return {key: _with_tuples_made(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_tuples_made(item) for item in value]
    return value


_OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[^=+~][^=]*)(?P<equals>=(?P<value>.*))?", re.DOTALL)
_INDEX = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True)
class Override:
    """One override, taken apart."""

    text: str
    sign: str
    key: str
    has_value: bool
    value: Any

    @property
    def parts(self) -> list[str]:
        """The names and indices on the way from the root: `a[0].b` gives `a`, `0`, `b`."""
        return _INDEX.sub(r".\1", self.key).split(".")


def parse_override(text: str) -> Override:
    """Take an override apart.

    Raises:
        ConfigError: it is none.
    """
    match = _OVERRIDE.fullmatch(text)
    if match is None or (match["equals"] is None and match["sign"] != "~"):
        raise ConfigError(f"{text!r} is no override; write key=value, +key=value to add a key, or ~key to remove one")
    has_value = match["equals"] is not None
    value = parse_value(match["value"].strip(), text) if has_value else None
    return Override(text, match["sign"] or "", match["key"].strip(), has_value, value)


def apply_overrides(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Change `config` by overrides, all of them or none; see `LazyConfig.apply_overrides`."""
    if isinstance(overrides, str):
        raise ConfigError(f"overrides must be a list of texts, got {overrides!r}; write [{overrides!r}]")
    if OmegaConf.is_readonly(config):
        raise ConfigError(f"{location(config)} is resolved and frozen; apply overrides before LazyConfig.resolved()")
    parsed = [parse_override(text) for text in overrides]
    trial = copy.deepcopy(config)
    for changed in (trial, config):
        for override in parsed:
            _apply(changed, override)
        check_tree(changed, load_targets=False)
    # Whoever finds fault with a value later can say where it was given.
    given = {".".join(override.parts): override.text for override in parsed}
    config.__dict__["_overridden"] = {**(config.__dict__.get("_overridden") or {}), **given}
    return config


def _apply(config: DictConfig, override: Override) -> None:
    if override.sign == "~":
        _remove(config, override)
    else:
        _set(config, override, override.parts, override.value)


def _set(config: DictConfig, override: Override, parts: list[str], value: Any) -> None:
    holder = _holder(config, override, parts)
    key = _own_key(holder, parts[-1])
    current = _child(holder, key)
    if isinstance(value, dict) and TARGET not in value and isinstance(current, DictConfig):
        for name, inner in value.items():
            _set(config, override, [*parts, str(name)], inner)
        return
    if current is None and not override.sign:
        raise ConfigError(_unknown(config, holder, ".".join(parts), key))
    if current is not None and override.sign == "+":
        raise ConfigError(
            f"{override.text!r} adds a key that {location(config)} has already; write {override.text[1:]} to change it"
        )
    _assign(holder, key, parse_bool(value) if _is_truth(holder, key, current) else value, override)


def _is_truth(holder: DictConfig | ListConfig, key: Any, current: Node | None) -> bool:
    """Whether True or False is meant: that stands there now, or a call has it as the default of the argument."""
    if current is not None:
        return isinstance(current._value(), bool)
    target = call_target(holder, load=False) if is_lazy(holder) else None
    return target is not None and isinstance(default_value(target, str(key)), bool)


def _assign(holder: DictConfig | ListConfig, key: Any, value: Any, override: Override) -> None:
    if isinstance(holder, ListConfig):
        if key == len(holder):
            holder.append(value)
            return
        if not isinstance(key, int) or key > len(holder):
            raise ConfigError(f"{override.text!r}: {location(holder)} is a list of {len(holder)} items")
        holder[key] = value
        return
    with open_dict(holder):
        holder[key] = value


def _remove(config: DictConfig, override: Override) -> None:
    holder = _holder(config, override, override.parts)
    key = _own_key(holder, override.parts[-1])
    if _child(holder, key) is None:
        raise ConfigError(_unknown(config, holder, ".".join(override.parts), key, adds=False))
    if override.has_value and holder[key] != override.value:
        raise ConfigError(
            f"{override.text!r}: {location(holder, key)} is {holder[key]!r}, not {override.value!r}; it was not removed"
        )
    if isinstance(holder, ListConfig):
        del holder[key]
    else:
        with open_dict(holder):
            del holder[key]


def _holder(config: DictConfig, override: Override, parts: list[str]) -> DictConfig | ListConfig:
    """Return the container that the last of `parts` is a key of; one that is to be added is made."""
    node: Any = config
    for position, part in enumerate(parts[:-1], start=1):
        key = _own_key(node, part)
        child = _child(node, key)
        if child is None:
            if override.sign not in ("+", "++"):
                raise ConfigError(_unknown(config, node, ".".join(parts), key, adds=override.sign != "~"))
            _assign(node, key, ConfigDict(), override)
            child = _child(node, key)
        if child is not None and child._is_interpolation():
            raise ConfigError(
                f"{override.text!r}: {location(node, key)} is {child._value()!r}; override what it refers to instead"
            )
        if not isinstance(child, (DictConfig, ListConfig)) or child._is_none():
            path = ".".join(parts[:position])
            raise ConfigError(f"{override.text!r}: {path} is {node[key]!r}, and nothing can be set below that")
        node = child
    return node  # type: ignore[no-any-return]


def _own_key(node: Any, part: str) -> Any:
    """Return a part of a dotted name as the key that `node` has: an index, or a number that is a key."""
    if isinstance(node, ListConfig):
        return int(part) if part.isdigit() else part
    return int(part) if part.isdigit() and part not in node and int(part) in node else part


def _child(node: DictConfig | ListConfig, key: Any) -> Node | None:
    return dict(children(node)).get(key)


def _unknown(config: DictConfig, holder: Any, path: str, key: Any, *, adds: bool = True) -> str:
    remedy = f" (+{path}=... adds it)" if adds else ""
    if is_lazy(holder) and adds:
        target = call_target(holder, load=False)
        if target is not None and key in known_names(target):
            return f"unknown key {path!r} in {_name(config)}; {title(target)} takes it: +{path}=... adds it"
    near = _nearest(config, path)
    if not near:
        names = [str(name) for name, _ in children(holder) if name != TARGET]
        return f"unknown key {path!r} in {_name(config)}; {location(holder)} has {names}{remedy}"
    return f"unknown key {path!r} in {_name(config)}; did you mean {' or '.join(map(repr, near))}?{remedy}"


def _name(config: DictConfig) -> str:
    return str(config.__dict__.get("_file") or "the config")


def _nearest(config: DictConfig, path: str) -> list[str]:
    """Return up to three paths of the config that may have been meant: spelt alike, or the same name elsewhere."""
    paths = list(_paths(config, ""))
    last = path.rpartition(".")[2]
    elsewhere = [known for known in paths if known.rpartition(".")[2] == last]
    return list(dict.fromkeys([*get_close_matches(path, paths, cutoff=0.75), *elsewhere]))[:3]


def _paths(node: Any, above: str) -> Iterator[str]:
    for key, child in children(node):
        if key != TARGET:
            yield f"{above}{key}"
            yield from _paths(child, f"{above}{key}.")
