"""Files for other systems, as their users write them, copied to where they can be changed and run."""

import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle.tools.migrate import Migration, migrate

INPUTS = Path(__file__).parent / "inputs"
Copied = Callable[[str], Path]


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copied]:
    """A function that copies one of the inputs into the working folder, a program with the suffix of one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def copy(name: str) -> Path:
        target = Path(name).with_suffix(".py") if name.endswith(".txt") else Path(name)
        shutil.copyfile(INPUTS / name, target)
        return target

    yield copy
    sys.modules.pop("points_of_mine", None)


def run_migrated(migration: Migration) -> dict[str, Any]:
    """Put the new text in the place of the old one, run it as a program, and return what it defines."""
    migration.path.write_text(migration.after)
    return runpy.run_path(str(migration.path), run_name="__main__")


def migrate_text(text: str, name: str = "program.py") -> Migration:
    """Migrate a few lines."""
    path = Path(name)
    path.write_text(text)
    return migrate(path)
