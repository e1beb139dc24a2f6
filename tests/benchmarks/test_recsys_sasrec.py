"""The benchmark of SASRec runs, ends when its time is over, and goes on from there."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recsys import sasrec as recsys_sasrec


def found(folder: Path, section: str = "paper") -> Any:
    return json.loads((folder / f"sasrec-{section}.json").read_text(encoding="utf-8"))


def test_both_sections_run_on_made_up_data(tmp_path: Path) -> None:
    recsys_sasrec.main(["--smoke", "--out", str(tmp_path)])
    for section in recsys_sasrec.SECTIONS:
        data = found(tmp_path, section)
        assert data["complete"]
        assert [one["epoch"] for one in data["valid"]] == [1, 2]
        assert 0 <= data["test"]["ndcg@10"] <= data["test"]["hit@10"] <= 1
        assert "A smoke test" in (tmp_path / f"sasrec-{section}.md").read_text(encoding="utf-8")


def test_a_run_whose_time_is_over_goes_on_with_the_same_command(tmp_path: Path) -> None:
    command = ["--smoke", "--sections", "paper", "--out", str(tmp_path), "--run-dir", str(tmp_path / "runs")]
    recsys_sasrec.main([*command, "--budget-s", "0"])
    first = found(tmp_path)
    # How many of the two epochs fit into no time depends on when the clock is looked at.
    assert first["epochs"] < 2
    assert not first["complete"]
    assert "The time was over" in (tmp_path / "sasrec-paper.md").read_text(encoding="utf-8")
    recsys_sasrec.main(command)
    assert (found(tmp_path)["epochs"], found(tmp_path)["complete"]) == (2, True)
    whole = tmp_path / "whole"
    recsys_sasrec.main(["--smoke", "--sections", "paper", "--out", str(whole)])
    assert found(whole)["test"] == found(tmp_path)["test"]


def test_folders_are_left_out_of_what_readers_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--smoke", "--sections", "softmax", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["recsys_sasrec", *arguments])
    recsys_sasrec.main(arguments)
    assert str(tmp_path) not in found(tmp_path, "softmax")["facts"]


def test_a_section_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        recsys_sasrec.main(["--sections", "papers"])
    assert "--sections: ['papers'] are unknown; use some of ['paper', 'behind', 'softmax']" in capsys.readouterr().err


def test_results_of_a_smoke_test_or_of_something_else_are_not_written(tmp_path: Path) -> None:
    recsys_sasrec.main(["--smoke", "--sections", "paper", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="is of a smoke test; its figures mean nothing"):
        recsys_sasrec.main(["--write-results", str(tmp_path / "sasrec-paper.json")])
    with pytest.raises(SystemExit, match="a section's results are called one of"):
        recsys_sasrec.main(["--write-results", str(tmp_path / "other.json")])
