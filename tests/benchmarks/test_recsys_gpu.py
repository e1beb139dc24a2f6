"""The benchmark of recommenders on a GPU runs on a CPU too, and measures nothing twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recsys import gpu as recsys_gpu
from benchmarks.recsys import published as recsys_published
from benchmarks.recsys import recbole as recsys


def found(folder: Path, section: str) -> Any:
    return json.loads((folder / f"recsys-{section}.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_sections_run_on_made_up_data_and_are_not_measured_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = "parity,gfcf,bpr,evaluation"
    command = ["--smoke", "--sections", sections, "--out", str(tmp_path), "--run-dir", str(tmp_path / "runs")]
    recsys_gpu.main(command)
    parity = found(tmp_path, "parity")
    assert [one["passed"] for one in parity["checks"]] == [True, True, True]
    assert parity["missing"] == {
        f"{model}, recorded against ordinary steps": "only a GPU records" for model in ("BPR", "LightGCN")
    }
    for section in ("gfcf", "bpr", "evaluation"):
        assert found(tmp_path, section)["complete"]
        assert not found(tmp_path, section)["missing"]
        assert "A smoke test" in (tmp_path / f"recsys-{section}.md").read_text(encoding="utf-8")
    assert found(tmp_path, "bpr")["steps"] == 7
    capsys.readouterr()
    recsys_gpu.main(["--smoke", "--sections", "bpr", "--out", str(tmp_path)])
    assert capsys.readouterr().out == "--- bpr: complete already\n"


def test_nothing_begins_when_the_time_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recsys_gpu.main(["--smoke", "--total-s", "5", "--sections", "bpr", "--out", str(tmp_path)])
    assert capsys.readouterr().out == "--- bpr: no time left; run the same command again\n"
    assert not list(tmp_path.iterdir())


def test_a_section_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        recsys_gpu.main(["--sections", "lightgcm"])
    assert "--sections: ['lightgcm'] are unknown; use some of ['parity', 'gfcf'," in capsys.readouterr().err


def test_the_comparison_has_the_ratio_of_all_turns_and_those_of_single_ones() -> None:
    case = recsys.Case("BPR", "toy", (2, 2), {"train": 3})
    seconds = {"recbole": {"train": [4.0, 4.0, 8.0, 8.0]}, "treadle": {"train": [1.0, 1.0, 1.0, 4.0]}}
    turns = {"recbole": {"train": [4.0, 8.0]}, "treadle": {"train": [1.0, 2.5]}}
    for one in (seconds, turns):
        for own in one.values():
            own["evaluate"] = [1.0, 1.0]
    table = recsys.table({case.name: {"seconds": seconds, "turns": turns}}, [case])
    assert "| BPR, toy | training epoch | 6.000 | 1.0000 | 6.0 | 3.2-4.0 | 3 |" in table
    assert "| BPR, toy | evaluation | 1.000 | 1.0000 | 1.0 | 1.0-1.0 |  |" in table


def test_a_deterministic_result_is_met_to_four_digits_and_another_from_its_bar_on() -> None:
    anchor = next(one for one in recsys_published.RESULTS if one.exact)
    assert anchor.is_met({"recall@20": 0.1849, "ndcg@20": 0.1518})
    assert not anchor.is_met({"recall@20": 0.1850, "ndcg@20": 0.1518})
    bpr = next(one for one in recsys_published.RESULTS if one.model == "BPR")
    assert bpr.is_met({"recall@10": 0.30, "mrr@10": 0.45})
    assert not bpr.is_met({"recall@10": 0.30, "mrr@10": 0.4499})
    result = {"found": {"recall@10": 0.30, "mrr@10": 0.4499}, "met": False, "epochs": 5, "seconds": 1.5}
    row = "| BPR | ml-100k | test | mrr@10 | 0.4499 | 0.4895 | 0.45 | **no** | 5 | 1.5 |"
    assert row in recsys_published.table({"BPR": result})
