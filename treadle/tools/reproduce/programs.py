"""How a run can be started again from its folder: by its config, its script, or its command line."""

import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from treadle.errors import ConfigError
from treadle.runs.place import run_place
from treadle.runs.provenance import is_library
from treadle.runs.reader import read_config, read_json

COMMANDS = (("treadle",), ("treadle", "__main__.py"), ("treadle", "cli", "__main__.py"))
"""How the name of Treadle's own command ends, as processes have it."""


@dataclass(frozen=True)
class Program:
    """What makes a run.

    Attributes:
        name: What it is called in messages.
        start: Begins the run, in the folder that `treadle.runs.place` says.
        run_dir: The folder that the program names for its run.
    """

    name: str
    start: Callable[[], Any]
    run_dir: Path


def find_program(run: Path) -> Program:
    """Return what made a run, as its folder tells.

    Raises:
        ConfigError: The folder does not tell, or what it tells of is gone; the message says what to do instead.
    """
    manifest, config = read_json(run / "manifest.json"), read_config(run)
    folder = Path(str(manifest.get("folder") or os.getcwd()))
    if {"model", "optim"} <= config.keys() and isinstance(config["model"], dict):
        return Program(f"{run}/config.yaml", lambda: _train_config(run), run)
    named = _named_folder(run, manifest, config, folder)
    known: dict[str, str] = manifest.get("program") or {}
    arguments = [str(word) for word in manifest.get("command") or [""]]
    if "script" in known:
        return _script(Path(known["script"]), arguments, folder, named)
    if "module" in known:
        name = known["module"]
        return Program(f"python -m {name}", lambda: _run(arguments, folder, lambda: _run_module(name)), named)
    parts = Path(arguments[0]).parts
    if any(parts[-len(name) :] == name for name in COMMANDS) and arguments[1:]:
        shown = f"treadle {' '.join(arguments[1:])}"
        return Program(shown, lambda: _run(arguments, folder, lambda: _run_module("treadle.cli")), named)
    raise ConfigError(
        f"{run} cannot be started again from its folder: no script, config or command made it, but a notebook or a "
        "shell; put what made it into a function and call treadle.verify(function, run_dir)"
    )


def _named_folder(run: Path, manifest: dict[str, Any], config: dict[str, Any], folder: Path) -> Path:
    """Return the folder that the program names, which is another one than `run` if the run was moved."""
    named = config.get("run_dir")
    return folder / str(named) if named else run


def _script(path: Path, arguments: list[str], folder: Path, named: Path) -> Program:
    if not path.is_file():
        raise ConfigError(
            f"the run was made by {path}, which is not there any more; put it back, or call treadle.verify(function, "
            "run_dir) with what makes the run now"
        )
    run_script = lambda: runpy.run_path(str(path), run_name="__main__")  # noqa: E731 - it has no use but here
    return Program(str(path), lambda: _run(arguments, folder, run_script, path.parent), named)


def _run_module(name: str) -> None:
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run(arguments: list[str], folder: Path, start: Callable[[], Any], beside: Path | None = None) -> None:
    """Run a program as its command line did: with its arguments, in its folder, with its own modules fresh."""
    if not folder.is_dir():
        raise ConfigError(f"the run was made in {folder}, which is not there any more")
    path = [str(folder if beside is None else beside), *sys.path]
    with _in_folder(folder), fresh_modules(), patch.object(sys, "argv", arguments), patch.object(sys, "path", path):
        start()


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def fresh_modules() -> Iterator[None]:
    """Forget, at the end, the modules that the block imported from files of the user's."""
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            path = getattr(sys.modules[name], "__file__", None)
            if isinstance(path, str) and not is_library(os.path.abspath(path)):
                del sys.modules[name]


def _train_config(run: Path) -> None:
    """Begin the run that the config in a folder describes."""
    from treadle.engine.setup import prepare_environment
    from treadle.engine.trainers.factory import build_trainer
    from treadle.tools.run_config import load_saved

    with fresh_modules():
        config = load_saved(run, [])
        config.train.update(output_dir=str(run_place(run)), resume="auto")
        prepare_environment(config)
        build_trainer(config)(config).train()
