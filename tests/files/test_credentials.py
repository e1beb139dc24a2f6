"""Passwords in addresses are never shown."""

import json
import sys
from pathlib import Path

import pytest

from treadle.files.bounded_io import without_passwords
from treadle.runs.folder import RunFolder

URL = "mysql+pymysql://user:secretpw@db.example:3306/trials"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (URL, "mysql+pymysql://user:***@db.example:3306/trials"),
        ("postgresql://:secretpw@host/x", "postgresql://:***@host/x"),
        ("postgresql://u:se@cret@host/x", "postgresql://u:***@host/x"),
        ("postgresql://u:se/cret@host/x", "postgresql://u:***@host/x"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("postgresql://u@host/x?password=secretpw&ssl=1", "postgresql://u@host/x?password=***&ssl=1"),
        ("sqlite:///trials.db", "sqlite:///trials.db"),
        (
            f"--store={URL}, then http://a:b@c",
            "--store=mysql+pymysql://user:***@db.example:3306/trials, then http://a:***@c",
        ),
        ("C:/runs/a@b: no address", "C:/runs/a@b: no address"),
    ],
)
def test_the_password_of_a_url_is_hidden_and_all_else_stays(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


def test_the_manifest_of_a_run_keeps_no_password_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["treadle", "search", "space.py", "--store", URL])
    RunFolder(tmp_path / "run").write_manifest({"step": 0})
    text = (tmp_path / "run" / "manifest.json").read_text()
    assert "secretpw" not in text
    assert json.loads(text)["command"][-1] == "mysql+pymysql://user:***@db.example:3306/trials"
