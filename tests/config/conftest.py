"""Config files in a folder of their own, which is the working folder while a test runs."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a file below the working folder and returns its path, from there on."""
    monkeypatch.chdir(tmp_path)

    def write_file(name: str, text: str) -> Path:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return write_file
