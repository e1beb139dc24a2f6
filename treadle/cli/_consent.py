"""Asked before the folder of a run that somebody else may have made decides what is called here."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from treadle.errors import ConfigError
from treadle.files.ownership import is_own_file, is_own_manifest
from treadle.parallel.launch import worker
from treadle.runs.reader import read_json
from treadle.tools.run_config import CONFIG_FILE

VARIABLE = "TREADLE_ALLOW_TARGETS"
"""The environment variable with names that may be called, with commas between them."""
SHOWN = 10
"""How many names a message lists."""
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="NAME",
        help="What a run of somebody else's may call: a full name, or its beginning, such as timm; '*' for all.",
    ),
]


def confirm_config(file: Path, allow: Sequence[str] | None, *, run: Path | None = None) -> list[str]:
    """Make sure that what a config in the folder of a run names may be called.

    Nothing is asked of a config that this user wrote here, and of one that names only harmless parts of torch and
    Treadle and the code in the working folder.

    Args:
        file: The config.
        allow: What else may be called, as the command line says.
        run: The folder of the run; by default the one that the file is in.

    Returns:
        What may be called: what was given, and what was agreed to; for the other processes of a group.

    Raises:
        ConfigError: It names something else, and there is nobody to ask, or the answer is no.
    """
    given = _given(allow)
    if is_own_file(file):
        return given
    from treadle.cli._allowed_targets import Allowed, find_targets
    from treadle.config import LazyConfig

    allowed = Allowed(given, file.parent if run is None else run)
    named = [
        (where if where.isprintable() else repr(where), name) for where, name in find_targets(LazyConfig.load(file))
    ]
    unknown = [(where, name) for where, name in named if not allowed.permits(name, where)]
    return [*given, *_agreed(file, unknown)] if unknown else given


def confirm_source(source: str, allow: Sequence[str] | None) -> list[str]:
    """Make sure of what a config file names, if it is that of a run; others are their user's own.

    Raises:
        ConfigError: As for `confirm_config`.
    """
    file = Path(source)
    beside = [file.parent / name for name in ("manifest.json", "checkpoints", "status.json")]
    in_run = file.name == CONFIG_FILE and file.is_file() and any(path.exists() for path in beside)
    return confirm_config(file, allow) if in_run else _given(allow)


def confirm_program(run: Path, allow: Sequence[str] | None) -> list[str]:
    """Make sure that what made a run, as its folder tells, may be run again.

    Raises:
        ConfigError: Somebody else may have made it, and there is nobody to ask, or the answer is no.
    """
    from treadle.runs.reader import read_config

    manifest, config = read_json(run / "manifest.json"), read_config(run)
    if {"model", "optim"} <= config.keys():
        return confirm_config(run / CONFIG_FILE, allow)
    given = _given(allow)
    if not manifest or is_own_manifest(manifest):
        return given
    known = manifest.get("program")
    name = _program_name(known if isinstance(known, dict) else {}, manifest)
    from treadle.cli._allowed_targets import ANYTHING, Allowed

    if name in given or ANYTHING in given or Allowed((), run).has_file(name):
        return given
    return [*given, *_agreed(run / "manifest.json", [("program", name)])]


def allow_options(names: Sequence[str]) -> list[str]:
    """Return the options by which another process of a command is told what may be called."""
    return [word for name in names for word in ("--allow", name)]


def _program_name(known: dict[str, Any], manifest: dict[str, Any]) -> str:
    command = manifest.get("command")
    words = command if isinstance(command, list) else []
    return str(known.get("script") or known.get("module") or " ".join(map(str, words)))


def _given(allow: Sequence[str] | None) -> list[str]:
    variable = os.environ.get(VARIABLE, "").split(",")
    return [name.strip() for text in allow or () for name in text.split(",") if name.strip()] + [
        name.strip() for name in variable if name.strip()
    ]


def _agreed(file: Path, unknown: Sequence[tuple[str, str]]) -> list[str]:
    """Return the names, if whoever sits at the terminal agrees that they are called.

    Raises:
        ConfigError: Nobody sits there, or the answer is no.
    """
    names = list(dict.fromkeys(name for _, name in unknown))
    listed = [f"{name!r} ({where})" for where, name in unknown][:SHOWN]
    more = len(unknown) - SHOWN
    shown = ", ".join([*listed, *([f"and {more} more"] if more > 0 else [])])
    if not _is_interactive():
        raise ConfigError(
            f"{file} was not written by you here, or was changed since, and this calls what it names: {shown}. Whoever "
            f"wrote it decides what that does. If you trust it, pass --allow with these names, or '*' for all, or set "
            f"{VARIABLE}"
        )
    typer.echo(f"{file} was not written by you here, or was changed since, and this calls what it names:", err=True)
    typer.echo("\n".join(f"  {where or 'the config'}: {name!r}" for where, name in unknown), err=True)
    if not typer.confirm("Whoever wrote it decides what that does. Do you trust it?", err=True):
        raise ConfigError(f"{file}: nothing was called")
    return names


def _is_interactive() -> bool:
    return not worker.in_process_group() and sys.stdin.isatty() and sys.stderr.isatty()
