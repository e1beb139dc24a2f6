"""The benchmark of sequential models runs row by row, ends when its time is over, and resumes there."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recsys import sequential


def test_rows_are_complete_once_and_make_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "beauty:eSASRec:1,ml-1m:HSTU:2"
    command = ["--smoke", "--rows", rows, "--out", str(tmp_path), "--run-dir", str(tmp_path / "runs")]
    sequential.main(command)
    found: list[dict[str, Any]] = [json.loads(one.read_text()) for one in sorted(tmp_path.glob("*.json"))]
    assert [one["row"] for one in found] == [["beauty", "eSASRec", 1], ["ml-1m", "HSTU", 2]]
    assert all(one["complete"] and one["epochs"] == 2 and 0 <= one["test"]["ndcg@10"] <= 1 for one in found)
    sequential.main(command)
    assert capsys.readouterr().out.count("complete already") == 2
    table = sequential.as_markdown(found)
    assert f"| beauty | eSASRec | 1 | 2 | {found[0]['test']['recall@10']:.4f} |" in table
    assert "| ml-1m | gSASRec, published | | | 0.3003 | 0.1726 | |" in table
    assert "beauty: no model has three seeds yet" in table
    three = [{**found[0], "test": {"recall@10": 0.0920, "ndcg@10": value}} for value in (0.05, 0.051, 0.052)]
    assert "beauty: within 1% of the best published recall@10 met, NDCG@10 NOT met." in sequential.as_markdown(three)
    with pytest.raises(SystemExit, match="is of a smoke test; its figures mean nothing"):
        sequential.main(["--write-results", *map(str, tmp_path.glob("*.json"))])


def test_a_row_whose_time_is_over_resumes_with_the_same_command(tmp_path: Path) -> None:
    command = ["--smoke", "--rows", "toys:gSASRec:1", "--run-dir", str(tmp_path / "runs")]
    # Ten seconds is the least that a row is begun with: an epoch behind them is one that the time ends in.
    sequential.main([*command, "--out", str(tmp_path / "first"), "--epochs", "1"])
    sequential.main([*command, "--out", str(tmp_path / "second")])
    (found,) = (json.loads(one.read_text()) for one in (tmp_path / "second").glob("*.json"))
    assert [one["epoch"] for one in found["valid"]] == [2]
    assert found["epochs"] == 2


def test_a_row_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sequential.main(["--rows", "beauty:SASRec:1"])
    assert "beauty:SASRec:1 is no row; write data:model:seed" in capsys.readouterr().err
