"""Tests that leave something in the checkout fail their run, by name."""

import shutil
from pathlib import Path

import pytest

from tests import conftest


@pytest.mark.parametrize("leaves", [True, False])
def test_a_run_that_leaves_a_file_in_the_checkout_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], leaves: bool
) -> None:
    # Not called tests: this process has another conftest of that name.
    folder = tmp_path / "checks"
    folder.mkdir()
    shutil.copy(conftest.__file__, folder)
    left = (tmp_path if leaves else folder) / "weights.pt"
    (folder / "test_one.py").write_text(f"def test_one() -> None:\n    open({str(left)!r}, 'w').close()\n")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--import-mode=importlib", "--rootdir", str(tmp_path)]
    status = pytest.main([*options, "-c", "/dev/null", str(folder)])
    output = capsys.readouterr().out
    assert "1 passed" in output
    assert status == (pytest.ExitCode.TESTS_FAILED if leaves else pytest.ExitCode.OK)
    told = f"ERROR weights.pt appeared in {tmp_path} while the tests ran; have them write into tmp_path"
    assert (told in output) is leaves


def test_the_files_that_workers_begin_with_are_there() -> None:
    assert [name for name in conftest.LONGEST if not (conftest.ROOT / name).is_file()] == []
