"""Architectures that NNI's one-shot trainers exported, as those of the same space here."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from treadle.errors import ConfigError, did_you_mean
from treadle.nas import Architecture, Decision, Space, Subset


def read_architecture(path: Path, model: nn.Module) -> Architecture:
    """Return the architecture in a file that NNI exported: JSON, a choice by its label.

    A layer is named by its position or its name, inputs by a position, several, or a mask of true and false.

    Args:
        path: The file.
        model: The space, migrated, with the labels it had.

    Raises:
        ConfigError: It is no such file, or the space has no such choice.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} holds no architecture: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no architecture: it is a {type(content).__name__}, not choices by label")
    space = Space(model)
    known = {str(label): decision for label, decision in space.decisions.items()}
    found: dict[str, Any] = {}
    for label, value in content.items():
        if label not in known:
            raise ConfigError(f"{path}: the space has no choice {label!r}{did_you_mean(label, known)}")
        found[label] = _value(path, label, known[label], value)
    return space.complete(found)


def _value(path: Path, label: str, decision: Decision | Subset, value: Any) -> Any:
    if isinstance(decision, Subset):
        return _positions(value)
    options = list(decision.candidates)
    if value in options:
        return value
    by_text = {str(option): option for option in options}
    if str(value) in by_text:
        return by_text[str(value)]
    if isinstance(value, int) and 0 <= value < len(options):
        return options[value]
    raise ConfigError(f"{path}: {label} is {value!r}, and the space has {options}")


def _positions(value: Any) -> list[int]:
    """Return which inputs are chosen.

    >>> _positions(1), _positions([0, 2]), _positions([True, False, True])
    ([1], [0, 2], [0, 2])
    """
    if isinstance(value, list) and value and all(isinstance(one, bool) for one in value):
        return [place for place, chosen in enumerate(value) if chosen]
    return [int(one) for one in (value if isinstance(value, list) else [value])]
