"""The files of a run beside its checkpoints and metrics."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.errors import CheckpointError
from treadle.runs.folder import RunFolder, git_commit, to_yaml

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and left == right


@settings(deadline=None, derandomize=True, database=None)
@given(st.dictionaries(st.text(min_size=1), PLAIN, max_size=4))
def test_any_plain_data_comes_back_from_yaml_as_it_was(data: dict[str, Any]) -> None:
    assert same(yaml.safe_load(to_yaml(data)) or {}, data)


@pytest.mark.parametrize("value", [1e-05, 1.0, 1e300, -2.5e-10, 5e-324, 0.1, -0.0, math.inf, -math.inf])
def test_a_float_comes_back_as_the_same_float(value: float) -> None:
    found = yaml.safe_load(to_yaml({"value": value}))["value"]
    assert (type(found), found) == (float, value)


@pytest.mark.parametrize(
    "word", ["yes", "no", "on", "off", "null", "true", "~", "1", "1e3", "a: b", "#", "é", "😀", ""]
)
def test_a_word_that_could_be_something_else_stays_a_word(word: str) -> None:
    assert yaml.safe_load(to_yaml({"value": word, "list": [word]})) == {"value": word, "list": [word]}
    if word:
        assert yaml.safe_load(to_yaml({word: 1})) == {word: 1}


def test_objects_are_given_by_what_they_print_as() -> None:
    assert yaml.safe_load(to_yaml({"path": Path("a/b"), "pair": (1, 2), "none": ()})) == {
        "path": "a/b",
        "pair": [1, 2],
        "none": [],
    }


def test_a_folder_is_made_with_a_place_for_checkpoints(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "b")
    assert folder.checkpoints.is_dir()
    RunFolder(tmp_path / "a" / "b")


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=rf"the run folder {tmp_path / 'file'} cannot be written: "):
        RunFolder(tmp_path / "file")


def test_the_log_is_added_to(tmp_path: Path) -> None:
    for _ in range(2):
        RunFolder(tmp_path).log("é\n  two lines")
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == "é\n  two lines\n" * 2


def test_a_configuration_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_config({"a": 1, "b": {"c": 2}})
    folder.write_config({"a": 2})
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {"a": 2}
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "checkpoints"}


def test_each_manifest_adds_a_start_to_those_before(tmp_path: Path) -> None:
    for step in (0, 7):
        RunFolder(tmp_path).write_manifest({"step": step, "seed": 3})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [start["step"] for start in manifest["starts"]] == [0, 7]
    assert (manifest["seed"], manifest["step"]) == (3, 7)
    assert set(manifest["packages"]) >= {"torch", "numpy", "safetensors", "treadle"}
    assert all("T" in start["time"] for start in manifest["starts"])


@pytest.mark.parametrize("content", ["", "{", "[]", '{"starts": 3}', '"text"', "{}"])
def test_a_manifest_that_cannot_be_read_is_begun_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    RunFolder(tmp_path).write_manifest({"step": 5})
    assert [start["step"] for start in json.loads((tmp_path / "manifest.json").read_text())["starts"]] == [5]


def test_facts_that_json_does_not_know_are_written_as_words(tmp_path: Path) -> None:
    RunFolder(tmp_path).write_manifest({"step": 0, "where": Path("a")})
    assert json.loads((tmp_path / "manifest.json").read_text())["where"] == "a"


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_known_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    assert git_commit(tmp_path) is None
    git(tmp_path, "commit", "--quiet", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_commit(tmp_path) == {"commit": commit, "changed": False}
    (tmp_path / "file").write_text("two")
    assert git_commit(tmp_path) == {"commit": commit, "changed": True}


def test_outside_a_repository_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert git_commit(Path.cwd()) is None
