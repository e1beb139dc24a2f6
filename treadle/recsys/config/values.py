"""The value of a setting: what text stands for, and whether it can be meant."""

import ast
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from treadle.config.truth import parse_bool
from treadle.errors import ConfigError, did_you_mean

logger = logging.getLogger(__name__)
NOTHING = ("none", "null", "~")
LEAST = {"epochs": 0, "train_batch_size": 1, "eval_batch_size": 1, "MAX_ITEM_LIST_LENGTH": 1}
RESUME = "--resume="
"""What the place of a run that a program goes on with begins with."""
PROGRAM_OPTIONS = frozenset({"config_files", "nproc", "ip", "port", "world_size", "group_offset", "resume"})
"""What RecBole's program `run_recbole.py` reads of a command line for itself, and what is no setting of a run."""
OTHERS_PROGRAMS = frozenset(
    {"ipykernel_launcher.py", "ipykernel", "pytest", "py.test", "treadle", "cli", "doctest", "unittest"}
)
"""Programs, and packages, whose command lines are not those of the code that they run."""
_IS_SETTING = re.compile(r"--\w[\w.-]*=.*", re.DOTALL)
MAPPINGS = ("threshold", "preload_weight", "unused_col", "discretization")
"""Settings that hold others by name and have no default to tell so."""
TREES = ("lgb_", "xgb_")
"""What settings begin with that a library of trees reads, and knows best."""
PLAIN = (str, int, float, bool, list, tuple, dict, type(None))


def parse_literal(text: str) -> Any:
    """Return what a text stands for: a number, a truth value, nothing, a list, a dict, or just itself.

    Nothing is ever evaluated. Words are those of YAML, so that a command line means what a file means.

    >>> parse_literal("1e-3"), parse_literal("[10, 20]"), parse_literal("true"), parse_literal("None")
    (0.001, [10, 20], True, None)
    >>> parse_literal("off"), parse_literal("Yes")
    (False, True)
    >>> parse_literal("{'RS': [0.8, 0.1, 0.1]}"), parse_literal("[Recall, NDCG]")
    ({'RS': [0.8, 0.1, 0.1]}, ['Recall', 'NDCG'])
    >>> parse_literal("[10,inf)"), parse_literal("__import__('os')")
    ('[10,inf)', "__import__('os')")
    """
    if text.strip().lower() in NOTHING:
        return None
    truth = parse_bool(text)
    if isinstance(truth, bool):
        return truth
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _parse_flow(text)
    return value if isinstance(value, PLAIN) else text


def _parse_flow(text: str) -> Any:
    """Return a list or dict whose words stand without quotes, as a shell leaves them; else the text."""
    if not (text.startswith(("[", "{")) and text.endswith(("]", "}"))):
        return text
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def typed_value(name: str, value: Any, default: Any, where: str) -> Any:
    """Return the value of a setting, in the type of its default.

    Text is parsed unless the default is text itself.

    Args:
        name: The setting.
        value: What was given.
        default: What Treadle has for it.
        where: Where it was given, for messages.

    Raises:
        ConfigError: The default is a number or a truth value, and the value is not.
    """
    if isinstance(default, str):
        nothing = isinstance(value, str) and value.strip().lower() in NOTHING
        return None if nothing else os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(value, str):
        value = parse_literal(value)
    if isinstance(default, bool):
        return None if value is None else _checked(name, value, isinstance(value, bool), "True or False", where)
    if isinstance(default, (int, float)):
        number = _checked(name, value, _is_number(value), "a number", where)
        return _as_whole(name, number, where) if isinstance(default, int) else float(number)
    if name in MAPPINGS:
        return _checked(name, value, value is None or isinstance(value, Mapping), "a mapping, or None", where)
    if isinstance(default, Mapping) and isinstance(value, Mapping):
        return {part: _typed_part(f"{name}.{part}", one, default.get(part), where) for part, one in value.items()}
    return value


def _typed_part(name: str, value: Any, default: Any, where: str) -> Any:
    # A part may be None where the whole may not, and most are texts that stand for many things.
    return value if value is None or not isinstance(default, bool) else typed_value(name, value, default, where)


def model_value(name: str, value: Any, default: Any, where: str) -> Any:
    """Return the value of a setting that a model reads, having compared it with what comes with the model.

    A number may be whole or not, whatever its default is; nothing is said of texts, nor of what has no default.

    Raises:
        ConfigError: The default is a truth value, a number or a list, and the value is not.
    """
    if isinstance(default, bool):
        return typed_value(name, value, default, where)
    if isinstance(value, str) and not isinstance(default, str):
        value = parse_literal(value)
    if value is None:
        return value
    if isinstance(default, (int, float)) and not name.startswith(TREES):
        return _checked(name, value, _is_number(value), "a number", where)
    if isinstance(default, list):
        return _checked(name, value, isinstance(value, (list, tuple)), f"a list, such as {default}", where)
    return value


def check_least(settings: Mapping[str, Any]) -> None:
    """Make sure that numbers which count something are large enough.

    Raises:
        ConfigError: One is not.
    """
    for name, least in LEAST.items():
        value = settings.get(name)
        if value is None or value < least:
            raise ConfigError(f"{name}={value!r} must be at least {least}")


def log_level(state: Any) -> int:
    """Return the level of logging that the setting `state` names, in capitals or not; INFO if it is not set.

    Raises:
        ConfigError: There is no such level.
    """
    known = logging.getLevelNamesMapping()
    level = str(state or "info").upper()
    if level not in known:
        near = did_you_mean(level, known) or f"; use one of {sorted(known)}"
        raise ConfigError(f"state={state!r} is no level of logging{near}")
    return known[level]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_whole(name: str, value: float, where: str) -> int:
    return int(_checked(name, value, float(value).is_integer(), "a whole number", where))


def _checked(name: str, value: Any, good: bool, wanted: str, where: str) -> Any:
    if not good:
        raise ConfigError(f"{name}={value!r} in {where} must be {wanted}")
    return value


def command_line_settings(command: Sequence[str]) -> list[str]:
    """Return the settings among the arguments of a program, `--name=value`, as RecBole takes them.

    What is written otherwise, and what RecBole's own program reads for itself, is left to the program. Of a notebook,
    and of tests, the command line is not the program's: it gives none.

    >>> command_line_settings(["train.py", "--epochs=5", "-v", "--model=BPR", "--nproc=2", "data"])
    ['--epochs=5', '--model=BPR']
    """
    if _is_others(command):
        return []
    arguments = command[1:]
    settings = [text for text in arguments if _IS_SETTING.fullmatch(text)]
    taken = [text for text in settings if text[2:].partition("=")[0] not in PROGRAM_OPTIONS]
    left = [text for text in arguments if text not in settings]
    if left:
        logger.warning("%s on the command line are no settings, which are written --name=value; not used here", left)
    return taken


def resumed_run(command: Sequence[str]) -> str | None:
    """Return the run that a program now has, by `--resume=FOLDER` among its arguments.

    >>> resumed_run(["train.py", "--epochs=5", "--resume=saved/BPR"])
    'saved/BPR'
    """
    given = [] if _is_others(command) else [text for text in command[1:] if text.startswith(RESUME)]
    return given[-1][len(RESUME) :] if given else None


def _is_others(command: Sequence[str]) -> bool:
    """Return whether a command line is one of somebody else's program, which runs the code."""
    parts = Path(command[0] if command else "").parts
    module = parts[-2] if parts[-1:] == ("__main__.py",) and len(parts) > 1 else None
    return module in OTHERS_PROGRAMS or bool(parts and parts[-1] in OTHERS_PROGRAMS)


def parse_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Return the settings of a command line: `--name=value`, or `--name value`.

    >>> parse_arguments(["--epochs=5", "--eval_args", "{'mode': 'full'}"])
    {'epochs': '5', 'eval_args': "{'mode': 'full'}"}

    Raises:
        ConfigError: An argument is none of these, or a setting is given twice with different values.
    """
    settings: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not name:
            raise ConfigError(f"{argument!r} on the command line is no setting; write --name=value")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"{argument!r} on the command line has no value; write {argument}=value")
            value = rest.pop(0)
        if settings.get(name, value) != value:
            raise ConfigError(f"--{name} is given twice on the command line: {settings[name]!r} and {value!r}")
        settings[name] = value
    return settings
