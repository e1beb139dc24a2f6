"""What is written over is kept: by git, or beside the file."""

import subprocess
from pathlib import Path

import pytest

from tests.tools.migrate.conftest import migrate_text
from treadle.errors import ConfigError
from treadle.tools.migrate.migration import write

TEXT = "from pytorch_accelerated import Trainer\n"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def git(*arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def test_a_file_that_git_does_not_have_is_kept_beside_and_never_twice() -> None:
    assert write(migrate_text(TEXT)) == Path("program.py.orig")
    assert Path("program.py").read_text() == "from treadle import Trainer\n"
    assert Path("program.py.orig").read_text() == TEXT
    with pytest.raises(ConfigError, match=r"program.py is not committed, and program.py.orig is there already"):
        write(migrate_text(TEXT))


def test_a_file_that_git_has_is_written_over_and_one_that_was_changed_since_is_kept() -> None:
    git("init")
    Path("program.py").write_text(TEXT)
    git("add", "program.py")
    git("commit", "-m", "begin")
    assert write(migrate_text(TEXT)) is None
    assert write(migrate_text(TEXT + "# changed\n")) == Path("program.py.orig")


def test_a_place_that_cannot_be_written_to_is_told() -> None:
    migration = migrate_text(TEXT)
    migration.target = Path("program.py") / "inside.py"
    with pytest.raises(ConfigError, match=r"cannot write program.py/inside.py"):
        write(migration)
