"""Search spaces of NNI's experiments, which are JSON, as the domains that `treadle search` takes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.migration.migrated import Note

TYPE, VALUE = "_type", "_value"
KINDS: dict[str, Callable[[Any], str | None]] = {
    "choice": lambda values: f"one_of({', '.join(map(json.dumps, values))})",
    "uniform": lambda values: f"uniform({values[0]}, {values[1]})",
    "loguniform": lambda values: f"log({values[0]}, {values[1]})",
    "quniform": lambda values: f"uniform({values[0]}, {values[1]}, step={values[2]})",
    "randint": lambda values: f"int({values[0]}, {values[1] - 1})",
    "qloguniform": lambda values: f"int({values[0]}, {values[1]}, log=true)" if values[2] == 1 else None,
}


def is_search_space(text: str, path: Path) -> bool:
    """Whether a text is a search space of NNI's.

    Raises:
        ConfigError: It is no JSON.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {error.lineno}, is no JSON: {error.msg}") from error
    return isinstance(content, dict) and any(isinstance(one, dict) and TYPE in one for one in content.values())


def migrate(text: str, path: Path) -> tuple[str, list[Note]]:
    """Return a search space as the part `search` of a config, in YAML, and what cannot be said so."""
    notes, lines = [], []
    for name, domain in json.loads(text).items():
        line = _line_of(text, name)
        try:
            written = _domain(domain)
        except (KeyError, IndexError, TypeError, ConfigError) as error:
            notes.append(Note(line, f"{name}: {error if isinstance(error, ConfigError) else 'it is no domain'}"))
            continue
        notes += [Note(line, f"{name}: {text}", left=False) for text in _shifted(domain)]
        quoted = written.replace("'", "''")
        lines.append(f"    {name}: '{quoted}'")
    return "\n".join(["search:", "  choices:", *lines]) + "\n", notes


def _domain(domain: Any) -> str:
    kind, values = domain[TYPE], domain[VALUE]
    if any(isinstance(value, dict) for value in values):
        raise ConfigError("a choice between spaces has no counterpart in a file; write the search in Python")
    if kind not in KINDS or (written := KINDS[kind](values)) is None:
        raise ConfigError(f"{kind} has no counterpart; use uniform, log, int or one_of")
    return str(written)


def _shifted(domain: Any) -> list[str]:
    """Return what to say of a domain whose grid lies elsewhere: NNI's begins at zero, Treadle's at the lowest."""
    kind, values = domain[TYPE], domain[VALUE]
    if kind != "quniform" or values[0] % values[2] == 0:
        return []
    return [f"the values were multiples of {values[2]}; here they are {values[0]} and steps of {values[2]} from it"]


def _line_of(text: str, name: str) -> int:
    """Return the line on which a name is a key."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().lstrip("{").strip().startswith(json.dumps(name)):
            return number
    return 0
