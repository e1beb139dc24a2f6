"""What a run was made from is noted: its program, its code, and the files that are named."""

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Subset

from treadle.runs.provenance import code, determinism, file_checksum, files_named, is_library, origin, program


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("1,2\n")


class Rows:
    """A data set that knows its file, and somebody who knows it."""

    def __init__(self, path: Any) -> None:
        self.path = path
        self.owner: Any = None

    def __getitem__(self, index: int) -> Any:
        return index

    def __len__(self) -> int:
        return 1


def test_files_are_found_in_plain_data_and_in_data_sets_and_what_they_wrap() -> None:
    Path("other.csv").write_text("3\n")
    Path("more.csv").write_text("4\n")
    named = files_named({"a": ["rows.csv", 3, "cpu"]}, Subset(Rows(Path("other.csv")), [0]), Rows("./more.csv"))
    assert set(named) == {"rows.csv", "other.csv", "more.csv"}
    assert named["rows.csv"].startswith("4 bytes ")


def test_objects_that_hold_each_other_are_looked_at_once() -> None:
    first, second = Rows("rows.csv"), Rows("none.csv")
    first.owner, second.owner = second, {"back": [first]}
    assert set(files_named(first)) == {"rows.csv"}


def test_words_folders_that_one_is_in_and_the_run_itself_are_no_data(tmp_path: Path) -> None:
    Path("cpu").write_text("")
    Path("run").mkdir()
    Path("run/kept.txt").write_text("")
    values = ["cpu", ".", str(tmp_path), "run/kept.txt", "./run", "x" * 5000, "a\0b", ""]
    assert files_named(values, but=Path("run")) == {}


def test_a_change_in_a_file_or_a_folder_is_another_checksum() -> None:
    Path("data").mkdir()
    Path("data/a.txt").write_text("one")
    before = [file_checksum("rows.csv"), file_checksum("data")]
    for path, text in (("rows.csv", "1,3\n"), ("data/a.txt", "two")):
        Path(path).write_text(text)
        os.utime(path, ns=(1, 1))
    after = [file_checksum("rows.csv"), file_checksum("data")]
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert file_checksum("none") is None


def test_a_large_file_is_known_by_its_beginning_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.runs.provenance.SAMPLED_BYTES", 8)
    found = []
    for number, text in enumerate(("abcd....efgh", "abcd.!!.efgh", "abcd....efgX")):
        Path(f"{number}.bin").write_text(text)
        found.append(file_checksum(f"{number}.bin"))
    assert found[0] == found[1] != found[2]


def test_code_is_what_was_imported_and_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.py").write_text("x = 1\n")
    module = types.ModuleType("mine_for_a_test")
    module.__file__ = str(tmp_path / "mine.py")
    monkeypatch.setitem(sys.modules, "mine_for_a_test", module)
    found = code()
    assert found["mine.py"].startswith("6 bytes ")
    assert not any("site-packages" in path or "/treadle/" in path for path in found)
    assert is_library(os.__file__)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages that Python looks into."""
    folder = tmp_path / "env" / "lib" / "site-packages"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def module_in(folder: Path) -> str:
    """Return the file of a module in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "some.py").write_text("")
    return str(folder / "some.py")


def test_packages_of_other_environments_are_no_code_of_the_users(tmp_path: Path) -> None:
    assert is_library(module_in(tmp_path / "conda" / "envs" / "other" / "lib" / "python3.9" / "site-packages" / "pkg"))
    assert is_library(module_in(tmp_path / "usr" / "lib" / "python3" / "dist-packages"))
    assert not is_library(module_in(tmp_path / "src"))


def test_a_folder_that_a_pth_file_adds_holds_packages(tmp_path: Path, site: Path) -> None:
    overlay, other = tmp_path / "overlay", tmp_path / "other"
    (site / "overlay.pth").write_text(f"# ours\n{overlay}\nimport os\n")
    file = module_in(overlay / "pkg")
    assert is_library(file)
    assert not is_library(module_in(other))


def test_a_folder_that_an_installer_wrote_into_holds_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, mine = tmp_path / "vendored", tmp_path / "mine"
    (target / "pkg-1.0.dist-info").mkdir(parents=True)
    mine.mkdir()
    for folder in (target, mine):
        monkeypatch.syspath_prepend(str(folder))
    assert is_library(module_in(target / "pkg"))
    assert not is_library(module_in(mine))


@pytest.mark.parametrize("how", ["link", "pth"])
def test_a_project_installed_as_a_link_is_a_package_unless_one_works_in_it(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    project = tmp_path / "a project"
    file = module_in(project / "src" / "pkg")
    (project / "pyproject.toml").write_text("")
    if how == "pth":
        (site / "__editable__.pkg.pth").write_text(f"{project / 'src'}\n")
    else:
        (site / "pkg-1.0.dist-info").mkdir()
        noted = {"url": project.as_uri(), "dir_info": {"editable": True}}
        (site / "pkg-1.0.dist-info" / "direct_url.json").write_text(json.dumps(noted))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert is_library(file)
    monkeypatch.chdir(project)
    assert not is_library(file)


def test_what_cannot_be_read_in_a_folder_of_packages_is_passed_over(tmp_path: Path, site: Path) -> None:
    (site / "bad.pth").write_bytes(b"\xff\xfe/nowhere\n")
    (site / "bad-1.0.dist-info").mkdir()
    (site / "bad-1.0.dist-info" / "direct_url.json").write_text("[1]")
    assert not is_library(module_in(tmp_path / "src"))


def test_the_program_is_a_script_or_a_module_or_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert program() is None
    main.__file__ = str(tmp_path / "rows.csv")
    assert program() == {"script": str(tmp_path / "rows.csv")}
    main.__spec__ = types.SimpleNamespace(name="my.tool.__main__")  # type: ignore[assignment]
    assert program() == {"module": "my.tool"}
    main.__file__ = os.__file__
    assert program() is None


def test_what_decides_about_the_same_bits_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    found = determinism(True)
    assert (found["deterministic"], found["algorithms"], found["cublas workspace"]) == (True, True, ":4096:8")
    assert set(origin([], deterministic=False, but=Path("run"))) == {"program", "code", "files", "determinism"}
