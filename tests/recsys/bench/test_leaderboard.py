"""The table of a benchmark, by hand-made records."""

import json
from pathlib import Path
from typing import Any

from treadle.recsys.bench import Leaderboard, Record

SHARED = {"valid_metric": "NDCG@5", "topk": [5]}


def record(model: str, value: float, seed: int = 1, **given: Any) -> Record:
    test = {"recall@5": value / 2, "ndcg@5": value}
    told = {"epochs": 3, "seconds_per_epoch": 1.25, "memory_mib": 1234.0, "parameters": 5000, "device": "cpu"}
    return Record(model, seed, **{"test": test, "test_rows": 10, "test_print": "a", **told, **given})


def table(*records: Record, bigger: bool = True) -> Leaderboard:
    return Leaderboard(records, dataset="tiny", shared=SHARED, bigger=bigger)


def test_the_best_model_comes_first_and_the_deciding_metric_too() -> None:
    made = table(record("A", 0.1), record("B", 0.3), record("C", float("nan")))
    assert [line.model for line in made.lines] == ["B", "A", "C"]
    assert made.metrics == ["ndcg@5", "recall@5"]
    assert made.rows()[0] == ["1", "B", "0.3000", "0.1500", "3", "1.25", "1,234", "5,000", "1", "settings/B.yaml"]


def test_where_less_is_better_the_lowest_comes_first() -> None:
    assert [line.model for line in table(record("A", 0.3), record("B", 0.1), bigger=False).lines] == ["B", "A"]


def test_several_seeds_are_a_mean_and_a_standard_deviation() -> None:
    made = table(record("A", 0.1), record("A", 0.3, seed=2))
    assert made.rows()[0][2] == "0.2000 ± 0.1414"
    assert made.rows()[0][-2] == "2"


def test_models_that_were_tested_on_other_rows_are_named() -> None:
    made = table(record("A", 0.1), record("B", 0.3, test_print="b", test_rows=11))
    assert "NOT all models are tested on the same rows" in made.notes()[1]
    assert "A: 10 rows; B: 11 rows" in made.notes()[1]


def test_every_form_of_the_table_is_written(tmp_path: Path) -> None:
    failed = Record("B", 1, state="failed", error="ValueError: a\nb")
    table(record("A", 0.1, memory_mib=None), failed).write(tmp_path)
    text = (tmp_path / "leaderboard.md").read_text()
    assert "| 1 | A | 0.1000 | 0.0500 | 3 | 1.25 | - | 5,000 | 1 | settings/A.yaml |" in text
    assert "- B, seed 1: ValueError: a b" in text
    assert json.loads((tmp_path / "leaderboard.json").read_text())["order"] == ["A"]
    panels = {path.name: json.loads(path.read_text()) for path in (tmp_path / "panels").iterdir()}
    assert panels["What_failed.json"]["rows"] == [["B", "1", "ValueError: a b"]]
    assert panels["Leaderboard.json"]["rows"][0][1] == "A"
    assert ["topk", "[5]"] in panels["Protocol.json"]["rows"]


def test_what_failed_is_gone_once_nothing_does(tmp_path: Path) -> None:
    table(Record("B", 1, state="failed", error="x")).write(tmp_path)
    table(record("B", 0.1)).write(tmp_path)
    assert not (tmp_path / "panels" / "What_failed.json").exists()
