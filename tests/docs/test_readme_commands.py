"""Every command of the README and of the first page works outside of the repository, in the order of the pages."""

import sys
from pathlib import Path

import pytest

from benchmarks.package.readme import SKIPPED, commands, prepare, run_command

pytestmark = pytest.mark.slow


def test_each_command_that_is_not_run_has_its_reason_and_is_there() -> None:
    shown = {one.text for one in commands()}
    assert set(SKIPPED) <= shown
    assert len(shown) > 15


def test_the_commands_of_the_first_pages_work_in_an_empty_folder(tmp_path: Path) -> None:
    prepare(tmp_path)
    failed = {}
    for one in commands():
        if one.text not in SKIPPED:
            status, said, _ = run_command(one.text, tmp_path, Path(sys.executable))
            if status:
                failed[one.text] = (status, said[-2000:])
    assert failed == {}
