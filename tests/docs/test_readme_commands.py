"""Every command of the README and of the first page works outside of the repository, in the order of the pages."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks.package.readme import SKIPPED, commands, folder_for, prepare, run_command
from tests.forking.starting import ROOT, run

pytestmark = pytest.mark.slow


def test_each_command_that_is_not_run_has_its_reason_and_is_there() -> None:
    shown = {one.text for one in commands()}
    assert set(SKIPPED) <= shown
    assert len(shown) > 15


def outcome(text: str, folder: Path) -> tuple[int, str]:
    """Run a command of a page, and return its status and what it printed; Python is forked, where it can be."""
    program, *arguments = shlex.split(text.removesuffix("&"))
    if program not in ("treadle", "python") or {"--serve", "--nproc"} & set(arguments):
        return run_command(text, folder, Path(sys.executable))[:2]
    env = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "XDG_STATE_HOME": str(folder / ".state")}
    named = ("-m", "treadle") if program == "treadle" else ()
    done = run(*named, *arguments, cwd=folder_for(text, folder), env=env)
    return done.returncode, done.stdout + done.stderr


def test_the_commands_of_the_first_pages_work_in_an_empty_folder(tmp_path: Path) -> None:
    prepare(tmp_path)
    failed = {}
    for one in commands():
        if one.text not in SKIPPED:
            status, said = outcome(one.text, tmp_path)
            if status:
                failed[one.text] = (status, said[-2000:])
    assert failed == {}
