"""The folder of a run: what it was asked to do, where and with what, and what it showed."""

import json
import logging
import math
import os
import subprocess
import sys
import time
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from treadle.errors import CheckpointError
from treadle.files.atomic_io import clear_parts, read_patiently, replace_text, telling_absence
from treadle.files.bounded_io import without_passwords
from treadle.files.ownership import manifest_mark
from treadle.runs.place import run_address
from treadle.runs.status import made

logger = logging.getLogger(__name__)

PACKAGES = ("treadle", "torch", "numpy", "safetensors", "torchmetrics")
_COMMIT, _NO_COMMIT = "# branch.oid ", "(initial)"
"""How git begins the line of the commit, and what it says where none was made yet."""


class RunFolder:
    """The files of a run beside its checkpoints and metrics: `config.yaml`, `manifest.json`, `log.txt`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        with made(path):
            self.checkpoints.mkdir(exist_ok=True)

    def __str__(self) -> str:
        return run_address(self.path)

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the resolved settings of the run, having removed what an earlier process left half written.

        Raises:
            CheckpointError: The disk does not take it.
        """
        clear_parts(self.path)
        self.write("config.yaml", to_yaml(config))

    def write_manifest(self, facts: dict[str, Any]) -> None:
        """Write where and with what the run is made; each start of it adds a line to `starts`.

        Raises:
            CheckpointError: The disk does not take it, or the earlier starts cannot be read now.
        """
        manifest = {
            **facts,
            "command": [without_passwords(argument) for argument in sys.argv],
            "folder": os.getcwd(),
            "git": git_commit(Path.cwd()),
            "packages": {name: _version(name) for name in PACKAGES},
            "starts": [*self._earlier_starts(), {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "step": facts["step"]}],
        }
        manifest["mark"] = manifest_mark(manifest)
        self.write("manifest.json", json.dumps(manifest, indent=1, default=str))

    def write(self, name: str, text: str) -> None:
        """Put a file into the folder, or another in its place: whole or not at all.

        Raises:
            CheckpointError: The disk does not take it.
        """
        try:
            replace_text(self.path / name, text)
        except OSError as error:
            raise CheckpointError(f"cannot write {self.path / name}: {error}") from error

    def manifest(self) -> dict[str, Any]:
        """Return what the manifest of the last start says; nothing if there is none that can be understood.

        Raises:
            StorageError: It cannot be read now.
        """
        path = self.path / "manifest.json"
        try:
            with telling_absence(path):
                text = read_patiently(lambda: path.read_text(encoding="utf-8"))
            found = json.loads(text)
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _earlier_starts(self) -> list[Any]:
        starts = self.manifest().get("starts")
        return starts if isinstance(starts, list) else []

    def log(self, text: str) -> None:
        """Add a line to what the console showed; a full disk does not stop a run for that."""
        try:
            with (self.path / "log.txt").open("a", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            logger.warning("log.txt lacks a line that the console showed: %s", error)


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return torch.__version__ if package == "torch" else None


def git_commit(folder: Path) -> dict[str, Any] | None:
    """Return the commit that `folder` is at and whether files differ from it; None outside a repository."""
    # One call for both answers: each start of a run waits for it.
    command = ["git", "status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    commits = [line.removeprefix(_COMMIT) for line in lines if line.startswith(_COMMIT)]
    if not commits or commits == [_NO_COMMIT]:
        return None
    return {"commit": commits[0], "changed": any(not line.startswith("#") for line in lines)}


RESERVED = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
"""Words that YAML takes for something else."""


def to_yaml(value: Any, indent: int = 0) -> str:
    """Return plain data as YAML.

    >>> print(to_yaml({"a": 1, "b": {"c": [1, "x"]}, "d": {}}), end="")
    a: 1
    b:
      c:
        - 1
        - "x"
    d: {}
    """
    space = " " * indent
    if isinstance(value, dict) and value:
        entries = [(f"{space}{_key(key)}:", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)) and value:
        entries = [(f"{space}-", item) for item in value]
    else:
        return f"{space}{_scalar(value)}\n"
    text = ""
    for begin, item in entries:
        nests = isinstance(item, (dict, list, tuple)) and item
        text += f"{begin}\n{to_yaml(item, indent + 2)}" if nests else f"{begin} {_scalar(item)}\n"
    return text


def _key(key: Any) -> str:
    text = str(key)
    plain = text.isascii() and text.isidentifier() and text.lower() not in RESERVED
    return text if plain else _quoted(text)


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, str, dict, list)):
        return _quoted(value) if isinstance(value, str) else json.dumps(value)
    if isinstance(value, tuple):
        return "[]"
    if isinstance(value, float):
        return _float(value)
    return json.dumps(str(value))


def _float(value: float) -> str:
    if not math.isfinite(value):
        return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}[str(value)]
    mantissa, _, exponent = repr(value).partition("e")
    # Without a point, YAML reads 1e-05 as a word.
    return repr(value) if not exponent or "." in mantissa else f"{mantissa}.0e{exponent}"


def _quoted(text: str) -> str:
    """Return `text` in quotes, with what YAML does not take as it is written as a number."""
    quoted = json.dumps(text, ensure_ascii=False)
    if quoted.isprintable():
        return quoted
    return "".join(character if character.isprintable() else _escaped(ord(character)) for character in quoted)


def _escaped(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
