"""The table of classics resumes row by row, and says which rows were not run."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recsys import classics


def found(recall: float) -> dict[str, Any]:
    return {"found": {"recall@20": recall, "ndcg@20": 0.15}, "epochs": 1, "seconds": 3.0, "met": True}


def test_rows_that_were_not_run_are_marked_and_others_judged_by_what_is_published() -> None:
    table = classics.table({"GFCF": found(0.1849), "EASE": found(0.1700)})
    lines = {line.split("|")[1].strip(): line for line in table.splitlines()[2:]}
    assert set(lines) == {row.name for row in classics.ROWS}
    assert "| 0.1849 | 0.1500 | 0.1849 | yes | 3 |" in lines["GFCF"]
    assert "| 0.1700 | 0.1500 | 0.1765 | **no** | 3 |" in lines["EASE"]
    assert "not run" in lines["UltraGCN"]
    assert "for a GPU" in lines["UltraGCN"]


def test_an_iteration_is_compared_with_implicit_by_medians_and_single_turns() -> None:
    text = classics.timing({"treadle": [0.2, 0.1, 0.3], "implicit": [0.25, 0.2, 0.25], "version": "0.7"})
    assert "0.200 CPU s; of `implicit` 0.7" in text
    assert "0.50 to 1.20 (wanted: at most 1: met)" in text
    assert "was not measured" in classics.timing(None)


def test_rows_that_are_there_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"GFCF": found(0.1849)}))
    monkeypatch.setattr(sys, "argv", ["classics", "--out", str(file), "--rows", "GFCF"])
    monkeypatch.setattr(classics, "reach", lambda *args, **kwargs: pytest.fail("the row is there"))
    classics.main()
    assert "| GFCF |" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["classics", "--out", str(file), "--rows", "GFCK"])
    with pytest.raises(SystemExit):
        classics.main()
    assert "there is no row 'GFCK'" in capsys.readouterr().err
