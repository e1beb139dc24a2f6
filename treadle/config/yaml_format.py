"""Configs as YAML: plain data, and two tags of our own for what YAML lacks, `!tuple` and `!path`.

Reading makes dicts, lists, tuples, paths, text, numbers, dates as text, and nothing else: whatever a file says, no code
is run.
"""

import re
from pathlib import Path, PurePath
from typing import Any

import yaml  # type: ignore[import-untyped]

from treadle.errors import ConfigError

_FLOAT_TAG = "tag:yaml.org,2002:float"
_TIMESTAMP_TAG = "tag:yaml.org,2002:timestamp"
_MERGE_TAG = "tag:yaml.org,2002:merge"
# YAML 1.1 takes 3e-4 for text; everybody else takes it for a number.
_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)


def from_yaml(text: str, file: str) -> dict[Any, Any]:
    """Return the mapping that a YAML text holds.

    >>> from_yaml("{lr: 3e-4, betas: !tuple [0.9, 0.95]}", "x.yaml")
    {'lr': 0.0003, 'betas': (0.9, 0.95)}

    Args:
        text: the text.
        file: where it comes from, for messages.

    Raises:
        ConfigError: it is no YAML, holds anything but plain data, or is no mapping.
    """
    try:
        # The loader is a safe one: it builds plain data only.
        value = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = file if mark is None else f"{file}, line {mark.line + 1}"
        raise ConfigError(f"{place}: {error.problem or error.context}{_tag_hint(error)}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{file} holds a {type(value).__name__}; a config is a mapping of names to values")
    return value


def to_yaml(value: Any) -> str:
    """Return plain data, with tuples and paths, as YAML that `from_yaml` reads back."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def no_yaml(error: Any, file: str) -> str:
    """Return, in one line, where and why a file is no YAML.

    Args:
        error: What YAML's reader said of it.
        file: The name of the file.
    """
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "context", None) or str(error).partition("\n")[0]
    return f"{file} is no YAML{'' if mark is None else f', line {mark.line + 1}'}: {what}"


def _tag_hint(error: Any) -> str:
    if isinstance(error, yaml.constructor.ConstructorError) and "tag" in str(error.problem):
        return "; a config holds plain data, !tuple and !path, and nothing that would run code"
    return ""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Builds plain data and nothing else."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE_TAG:
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (list, dict)):
                break  # the parent says so better
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes plain data without anchors: a list that stands in two places is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _without(resolvers: dict[Any, Any], *tags: str) -> dict[Any, Any]:
    return {first: [(tag, rule) for tag, rule in rules if tag not in tags] for first, rules in resolvers.items()}


for _class in (_Loader, _Dumper):  # what is text to the one must be text to the other
    _class.yaml_implicit_resolvers = _without(_class.yaml_implicit_resolvers, _FLOAT_TAG, _TIMESTAMP_TAG)
    _class.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789."))


def _tuple(loader: Any, node: Any) -> tuple[Any, ...]:
    return tuple(loader.construct_sequence(node, deep=True))


def _text(dumper: Any, value: str) -> Any:
    # Only between double quotes are line breaks of other kinds than \n written so that they are read back.
    style = '"' if any(mark in value for mark in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


for _tag in ("!tuple", "tag:yaml.org,2002:python/tuple"):
    _Loader.add_constructor(_tag, _tuple)
_Loader.add_constructor("!path", lambda loader, node: Path(loader.construct_scalar(node)))
_Dumper.add_representer(str, _text)
_Dumper.add_representer(tuple, lambda dumper, value: dumper.represent_sequence("!tuple", value))
_Dumper.add_multi_representer(PurePath, lambda dumper, value: dumper.represent_scalar("!path", value.as_posix()))
