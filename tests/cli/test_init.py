"""`treadle init`: a project that trains and whose own tests pass, written where nothing is."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.conftest import Treadle
from tests.cli.project import forget_project
from tests.forking.starting import ROOT, run
from treadle.cli import app
from treadle.errors import ConfigError
from treadle.tools.scaffold import DOORS, package_name, write_project

FILES = {
    ".gitignore",
    "README.md",
    "pyproject.toml",
    "configs/train.py",
    "spinning/__init__.py",
    "spinning/data.py",
    "spinning/model.py",
    "tests/test_model.py",
}


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new project, as the working folder; nothing of it outlives the test."""
    write_project(tmp_path / "spinning")
    monkeypatch.chdir(tmp_path / "spinning")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "spinning"), *sys.path])
    yield tmp_path / "spinning"
    forget_project()
    for name in [name for name in sys.modules if name.partition(".")[0] == "spinning"]:
        del sys.modules[name]


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_project_has_a_config_a_model_a_test_and_a_readme(treadle: Treadle) -> None:
    output = treadle("init", "spinning").stdout
    assert output.startswith("spinning: a project whose package is spinning\n")
    assert files_of(Path("spinning")) == FILES
    assert all(f"  {name}\n" in output for name in FILES)
    assert output.endswith("  cd spinning\n  treadle train configs/train.py\n  python -m pytest  # needs pytest\n")
    for path in Path("spinning").rglob("*.*"):
        assert not path.is_file() or "@" not in path.read_text()


def test_the_package_is_called_like_the_folder_as_far_as_python_can(treadle: Treadle) -> None:
    treadle("init", "deep/My-Nice.Project")
    assert (Path("deep/My-Nice.Project") / "my_nice_project" / "model.py").is_file()
    assert "# My-Nice.Project\n" in (Path("deep/My-Nice.Project") / "README.md").read_text()


def test_what_comes_next_can_be_typed_whatever_the_name(treadle: Treadle) -> None:
    assert "\n  cd 'two words'\n" in treadle("init", "two words").stdout


def test_nothing_is_written_over(treadle: Treadle) -> None:
    Path("spinning").mkdir()
    Path("spinning/README.md").write_text("mine")
    told = treadle("init", "spinning", status=1).stderr.replace("\n  ", " ")
    assert "treadle init: spinning holds README.md already; nothing was written: choose another name" in told
    assert files_of(Path("spinning")) == {"README.md"}
    assert Path("spinning/README.md").read_text() == "mine"


def test_a_folder_that_holds_other_things_gets_the_project_and_is_told_of_them(treadle: Treadle) -> None:
    Path("spinning/tests").mkdir(parents=True)
    Path("spinning/.git").mkdir()
    mine = {"notes.txt": "mine", "tests/test_mine.py": "def test_mine(): pass\n"}
    for name, text in mine.items():
        (Path("spinning") / name).write_text(text)
    output = treadle("init", "spinning").stdout
    assert "\nThe folder was not empty. What it held is as it was: notes.txt, tests/\n" in output
    assert files_of(Path("spinning")) == FILES | set(mine)
    assert all((Path("spinning") / name).read_text() == text for name, text in mine.items())


def test_of_many_things_only_some_are_named(treadle: Treadle) -> None:
    Path("spinning").mkdir()
    for number in range(7):
        (Path("spinning") / f"{number}.txt").touch()
    told = "What it held is as it was: 0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 2 more\n"
    assert told in treadle("init", "spinning").stdout


def test_the_folder_that_one_is_in_becomes_a_project(treadle: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("spinning").mkdir()
    Path("spinning/.git").mkdir()
    monkeypatch.chdir("spinning")
    output = treadle("init", ".").stdout
    assert files_of(Path()) == FILES
    assert "not empty" not in output
    assert "\nWhat next:\n  treadle train configs/train.py\n" in output


def test_a_file_where_a_folder_of_the_project_shall_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spinning").mkdir()
    (tmp_path / "spinning" / "spinning").write_text("mine")
    with pytest.raises(ConfigError, match=r"spinning holds spinning already; nothing was written: choose another name"):
        write_project(tmp_path / "spinning")
    assert files_of(tmp_path / "spinning") == {"spinning"}


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"the project cannot be written: .*Not a directory.*; choose another folder"):
        write_project(tmp_path / "file" / "spinning")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spinning").write_text("mine")
    with pytest.raises(ConfigError, match="spinning is a file; choose another name"):
        write_project(tmp_path / "spinning")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("2fast", r"^'2fast' is no name that Python can import; use letters, digits and _, such as my_project$"),
        ("class", r"^'class' is no name that Python can import"),
        ("tests", r"^'tests' is what a folder of the project is called; choose another name$"),
        ("random", r"^a package 'random' is there already, and would be hidden; choose another name$"),
        ("Torch", r"^a package 'torch' is there already"),
    ],
)
def test_a_name_that_no_package_should_have_is_refused(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        package_name(tmp_path / name)


@pytest.mark.slow
def test_a_new_project_trains_and_goes_on(started: Path) -> None:
    def train(*arguments: str) -> Any:
        result = CliRunner().invoke(app, ["train", "configs/train.py", *arguments], prog_name="treadle")
        assert result.exit_code == 0, result.output
        return result.stdout

    output = train("train.dist.device_type=cpu")
    found = re.search(r"runs/train: finished after 300 of 300 iterations: Acc@1 ([\d.]+)", output)
    assert found is not None
    assert float(found[1]) > 95
    assert "runs/train is finished: 300 of 300 iterations are done" in train("train.dist.device_type=cpu")


@pytest.mark.slow
def test_the_tests_of_a_new_project_pass(started: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # In this process, since a new one would first load torch; with no plugin and no setting of our own suite.
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", str(started / "pyproject.toml")]
    status = pytest.main([*options, "--rootdir", str(started), str(started / "tests")])
    output = capsys.readouterr().out
    assert status == pytest.ExitCode.OK, output
    assert "4 passed" in output


@pytest.mark.slow
@pytest.mark.parametrize(("door", "said"), [("core", ""), ("recsys", "ndcg@10"), ("search", "% with {")])
def test_a_project_of_another_door_trains_and_its_tests_pass(door: str, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "spinning"
    write_project(folder, door)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for command in (DOORS[door].start.replace("@package@", "spinning"), "python -m pytest -q"):
        program, *arguments = shlex.split(command)
        assert program in ("python", "treadle")
        done = run(*(("-m", "treadle") * (program == "treadle")), *arguments, cwd=folder, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert said in done.stdout or "pytest" in command


def test_a_door_that_there_is_not_is_an_error_and_nothing_is_written(treadle: Treadle) -> None:
    told = treadle("init", "spinning", "--door", "cor", status=1).stderr.replace("\n  ", " ")
    assert "treadle init: --door='cor' does not exist; did you mean 'core'?" in told
    assert not Path("spinning").exists()


@pytest.mark.parametrize("door", sorted(DOORS))
def test_a_new_project_is_in_good_order(door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path / "spinning", door)
    monkeypatch.chdir(tmp_path / "spinning")
    marks = re.compile("@(project|package|extras)@")
    assert not [path for path in Path().rglob("*.*") if path.is_file() and marks.search(path.read_text())]
    ruff = Path(sys.executable).parent / "ruff"
    if not ruff.exists():
        pytest.skip("ruff is not installed beside this Python")
    for command in ("check", "format --check"):
        done = subprocess.run(
            [str(ruff), *command.split(), "--no-cache", "--isolated", "--line-length", "120", "."],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout
