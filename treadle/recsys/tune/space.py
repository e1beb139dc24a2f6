"""What a search over settings may try: by RecBole's lines, without evaluating any of them."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import ConfigError, did_you_mean
from treadle.recsys.config.evaluation import JUDGED, MEASURED, decided_by
from treadle.recsys.config.values import parse_literal
from treadle.search.space.config_space import ConfigSpace
from treadle.search.space.domains import Choice, Domain, integer, log_uniform, one_of, uniform

KINDS = ("choice", "uniform", "quniform", "loguniform", "log", "int")


@dataclass(frozen=True)
class Dimension:
    """The values that one setting may take.

    Attributes:
        name: The setting.
        kind: "choice"; "uniform"; "quniform", in steps; "loguniform", whose bounds are powers of e, as in RecBole;
            "log", whose bounds are what they say; "int".
        values: The choices, or the bounds and, for "quniform", the step.
    """

    name: str
    kind: str
    values: tuple[Any, ...]

    @property
    def domain(self) -> Domain:
        """What a search tries in the place of the setting."""
        if self.kind == "choice":
            return one_of(*self.values)
        low, high, *step = self.values
        if self.kind == "int":
            return integer(int(low), int(high))
        if self.kind in ("uniform", "quniform"):
            return uniform(low, high, *step)
        return log_uniform(math.exp(low), math.exp(high)) if self.kind == "loguniform" else log_uniform(low, high)

    @property
    def first(self) -> Any:
        """The first choice, or the lowest number."""
        domain = self.domain
        return domain.values[0] if isinstance(domain, Choice) else domain.low


class SettingsSpace(ConfigSpace):
    """What may be tried, as a search takes it.

    Args:
        space: The values that each setting may take.
    """

    def __init__(self, space: Iterable[Dimension]) -> None:
        self._space = list(space)
        super().__init__({one.name: one.domain for one in self._space})

    def fixed(self) -> dict[str, Any]:
        """Return what must stay: bounds may move; what Optuna takes for another kind of value may not."""
        return {one.name: list(one.values) if one.kind == "choice" else one.kind for one in self._space}


def parse_dimension(name: str, kind: str, value: Any) -> Dimension:
    """Return what a setting may be.

    >>> parse_dimension("learning_rate", "log", "1e-4,1e-2")
    Dimension(name='learning_rate', kind='log', values=(0.0001, 0.01))
    >>> parse_dimension("embedding_size", "choice", "[32,64]").values
    (32, 64)

    Raises:
        ConfigError: The kind does not exist, or the values are not what it needs.
    """
    if kind not in KINDS:
        near = did_you_mean(kind, KINDS) or f"; there are {list(KINDS)}"
        raise ConfigError(f"{name}: the search knows no {kind!r}{near}")
    if kind == "choice":
        return Dimension(name, kind, _choices(name, value))
    given = value.split(",") if isinstance(value, str) else list(value)
    numbers = [parse_literal(one.strip()) if isinstance(one, str) else one for one in given]
    wanted = 3 if kind == "quniform" else 2
    good = len(numbers) == wanted and all(isinstance(one, (int, float)) for one in numbers)
    if not good or not numbers[0] < numbers[1] or (kind == "log" and numbers[0] <= 0):
        form = "low,high,step" if kind == "quniform" else "low,high"
        raise ConfigError(f"{name} {kind} {value!r}: give {form}, two numbers of which the first is lower")
    return Dimension(name, kind, tuple(numbers))


def _choices(name: str, value: Any) -> tuple[Any, ...]:
    choices = parse_literal(value) if isinstance(value, str) else value
    if not isinstance(choices, (list, tuple)) or not choices:
        raise ConfigError(f"{name} choice {value!r}: give a list of values, such as [32, 64]")
    # Numbers of numpy's are plain ones: a search writes what it tries as JSON.
    plain = [one.item() if isinstance(one, np.generic) else one for one in choices]
    return tuple(parse_literal(one) if isinstance(one, str) else one for one in plain)


def read_space(path: str | os.PathLike[str]) -> list[Dimension]:
    """Return the space in a file: a line `name kind values` for each setting, as RecBole's hyper files have it.

    Raises:
        ConfigError: It cannot be read, or a line cannot be meant.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"the search space {os.fspath(path)} cannot be read: {error.strerror}") from error
    return parse_space(lines, where=os.fspath(path))


def parse_space(lines: list[str], *, where: str) -> list[Dimension]:
    """Return the space that lines `name kind values` describe; empty ones, and what follows a `#`, do not count.

    Raises:
        ConfigError: A line cannot be meant, or names a setting a second time; or there is none.
    """
    found: dict[str, Dimension] = {}
    for line in lines:
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) < 3:
            raise ConfigError(f"{where}: {line.strip()!r} is no setting to search; write `name kind values`")
        if words[0] in found:
            raise ConfigError(f"{where}: {words[0]} is there twice; give each setting one line")
        found[words[0]] = parse_dimension(words[0], words[1], "".join(words[2:]))
    if not found:
        raise ConfigError(f"{where}: there is nothing to search; write a line such as `learning_rate log 1e-4,1e-2`")
    return list(found.values())


def space_of(given: Mapping[str, Any]) -> list[Dimension]:
    """Return the space that a dict describes: a list of choices for a setting, or its kind and bounds.

    >>> space_of({"embedding_size": [32, 64], "learning_rate": ("log", 1e-4, 1e-2)})[1].kind
    'log'
    """
    found = []
    for name, value in given.items():
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], str) and value[0] in KINDS:
            found.append(parse_dimension(name, value[0], value[1] if value[0] == "choice" else value[1:]))
        else:
            found.append(parse_dimension(name, "choice", value))
    if not found:
        raise ConfigError("the search space is empty; name at least one setting")
    return found


def check_comparable(space: Iterable[Dimension], *, split_seed: Any = None) -> None:
    """Make sure that the scores of all trials compare: each is measured alike, on the same rows.

    Args:
        space: What may be tried; a setting with one choice is no other in any trial.
        split_seed: The seed of the split, where it is not that of the training.

    Raises:
        ConfigError: A setting decides what is measured, or which rows are judged.
    """
    open_names = [one.name for one in space if one.kind != "choice" or len(one.values) > 1]
    own_split = split_seed is not None or any(one.name == "split_seed" for one in space)
    for name in open_names:
        if name in (*MEASURED, *JUDGED):
            raise ConfigError(
                f"{name} cannot be searched over: it decides {decided_by(name)}, and the scores of its values do not "
                "compare; give it one value, in the settings of the search"
            )
        if name == "seed" and not own_split:
            raise ConfigError(
                "seed cannot be searched over while it decides the split too: each trial would be judged on other "
                "rows; set split_seed, such as split_seed=2020"
            )
