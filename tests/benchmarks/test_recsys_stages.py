"""The benchmarks of S3Rec and NCL run, end when their time is over, and go on from there."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.recsys import ncl as recsys_ncl
from benchmarks.recsys import s3rec as recsys_s3rec


def found(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def test_s3rec_is_measured_beside_sasrec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--smoke", "--sections", "paper,sasrec", "--out", str(tmp_path), "--run-dir", str(tmp_path / "runs")]
    recsys_s3rec.main(command)
    for section, epochs in (("paper", [2, 2]), ("sasrec", [0, 2])):
        data = found(tmp_path, f"s3rec-{section}")
        assert (data["complete"], data["epochs"]) == (True, epochs)
        assert [one["epoch"] for one in data["valid"]] == [1, 2]
        assert 0 <= data["test"]["ndcg@10"] <= data["test"]["hit@10"] <= 1
        assert "A smoke test" in (tmp_path / f"s3rec-{section}.md").read_text(encoding="utf-8")
    capsys.readouterr()
    recsys_s3rec.main(command)
    assert capsys.readouterr().out.count("complete already") == 2


def test_s3rec_goes_on_with_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["--smoke", "--sections", "softmax", "--out", str(tmp_path), "--run-dir", str(tmp_path / "runs")]
    with monkeypatch.context() as patch:
        patch.setattr("benchmarks.execution.session.Findings.has_time", lambda self, needed_s=0.0: False)
        recsys_s3rec.main(command)
    first = found(tmp_path, "s3rec-softmax")
    # How many of the four epochs fit into no time depends on when the clock is looked at.
    assert not first["complete"]
    assert sum(first["epochs"]) < 2
    assert "The time was over" in (tmp_path / "s3rec-softmax.md").read_text(encoding="utf-8")
    recsys_s3rec.main(command)
    assert found(tmp_path, "s3rec-softmax")["epochs"] == [2, 2]
    assert found(tmp_path, "s3rec-softmax")["complete"]


def test_ncl_is_measured_beside_lightgcn(tmp_path: Path) -> None:
    recsys_ncl.main(["--smoke", "--out", str(tmp_path), "--run-dir", str(tmp_path / "runs")])
    assert [found(tmp_path, f"ncl-{name}")["epochs"] for name in recsys_ncl.SECTIONS] == [4, 4]
    section = (tmp_path / "ncl.md").read_text(encoding="utf-8")
    assert "Bar: NCL above LightGCN at equal epochs: " in section
    assert "not comparable" not in section


def test_lines_are_told_apart_when_epochs_differ() -> None:
    one = {"facts": "", "smoke": False, "test": {"recall@20": 0.2, "ndcg@20": 0.1}, "epoch_s": None, "settings": {}}
    section = recsys_ncl.as_markdown({"ncl": {**one, "epochs": 4}, "lightgcn": {**one, "epochs": 3}})
    assert "not comparable: the epochs differ" in section
    assert "Nothing was found" in recsys_ncl.as_markdown({})


@pytest.mark.parametrize(("module", "name"), [(recsys_s3rec, "s3rec-paper"), (recsys_ncl, "ncl-ncl")])
def test_what_is_no_result_is_not_written(tmp_path: Path, module: ModuleType, name: str) -> None:
    place = tmp_path / f"{name}.json"
    place.write_text(json.dumps({"smoke": True}), encoding="utf-8")
    with pytest.raises(SystemExit, match="is of a smoke test; its figures mean nothing"):
        module.main(["--write-results", str(place)])
    with pytest.raises(SystemExit, match="a section's results are called one of"):
        module.main(["--write-results", str(tmp_path / "other.json")])
    with pytest.raises(SystemExit):
        module.main(["--sections", "papers"])
