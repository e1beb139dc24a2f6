"""A disk that refuses some operations, as full, read-only or broken ones do."""

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from treadle.checkpoint import store
from treadle.checkpoint.format import file


class FailingDisk:
    """Makes operations on some paths fail with an error of the operating system.

    Args:
        monkeypatch: What puts the operations back.
        error: The number of the error.

    Attributes:
        refused: The operations that failed, each with the name of what it was for.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
        self._error = error
        self._rules: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []
        for owner, name in ((Path, "mkdir"), (Path, "write_text"), (Path, "unlink"), (os, "replace")):
            monkeypatch.setattr(owner, name, self._guard(name, getattr(owner, name)))
        monkeypatch.setattr(os, "fsync", self._guard("fsync", os.fsync, where=_path_of))
        monkeypatch.setattr(shutil, "rmtree", self._guard("rmtree", shutil.rmtree))
        for module, name in ((store, "save_file"), (file, "save_safetensors")):
            monkeypatch.setattr(module, name, self._guard("save_file", getattr(module, name), where=_second))

    def refuse(self, operation: str, pattern: str = "*") -> None:
        """From now on let an operation fail on every path that matches."""
        self._rules.append((operation, pattern))

    def heal(self) -> None:
        """Let everything work again."""
        self._rules = []

    def _guard(self, name: str, original: Callable[..., Any], where: Callable[..., Path] | None = None) -> Any:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            path = Path(args[0]) if where is None else where(*args)
            # A rename is of both its names.
            paths = [path, Path(args[1])] if name == "replace" else [path]
            for operation, pattern in self._rules:
                if operation == name and any(one.match(pattern) for one in paths):
                    self.refused.append((name, path.name))
                    if name == "rmtree" and kwargs.get("ignore_errors"):
                        return None
                    raise self._failure(name, path)
            return original(*args, **kwargs)

        return guarded

    def _failure(self, name: str, path: Path) -> Exception:
        problem = OSError(self._error, os.strerror(self._error), str(path))
        # Safetensors writes in Rust, which wraps what the system says.
        return SafetensorError(f"I/O error: {problem}") if name == "save_file" else problem


def _path_of(descriptor: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


def _second(*args: Any) -> Path:
    return Path(args[1])


@contextmanager
def no_file_larger_than(limit: int) -> Iterator[None]:
    """Let the system itself cut every write beyond `limit` bytes of a file, in the middle if need be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
