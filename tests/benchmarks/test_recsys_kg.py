"""The benchmark of knowledge graphs runs what is missing, and says which bars were reached."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recsys import kg as recsys_kg
from benchmarks.recsys.kg import BY_RECBOLE, CASES, KGAT_SEEDS, METRICS, SEEDS


def answer(task: dict[str, Any]) -> dict[str, Any]:
    """Return made-up results: KGCN on music is too low, everything else is good."""
    if task["model"] == "KGAT":
        return {"seconds": 2.0 + task["seed"] % 10, **dict.fromkeys(METRICS, 0.2)}
    if task["model"] == BY_RECBOLE:
        return {"result": dict.fromkeys(METRICS, 0.1)}
    low = (task["model"], task["dataset"]) == ("KGCN", "kg-lastfm-music")
    return {"auc": 0.5 if low else 0.9, "valid": 0.9, "epochs": 7, "seconds": 1.0, "logloss": 0.3}


@pytest.fixture(autouse=True)
def with_recbole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recsys_kg, "RECBOLE", Path(__file__))


def test_only_what_is_missing_is_run_and_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(recsys_kg, "run", lambda task: asked.append(task) or answer(task))
    path = tmp_path / "kg.jsonl"
    recsys_kg.run_all(path, "MKR, kg-lastfm")
    assert [task["seed"] for task in asked] == list(SEEDS)
    results = recsys_kg.run_all(path, "")
    assert len(asked) == len(results) == len(SEEDS) * len(CASES) + 2 * len(KGAT_SEEDS)
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == results
    recsys_kg.run_all(path, "")
    assert len(asked) == len(results)


def test_a_bar_that_is_missed_is_written_as_missed() -> None:
    results = [{"task": task, "answer": answer(task)} for task in recsys_kg.tasks("")]
    lines = recsys_kg.section(results).splitlines()
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}
    assert "| 0.5000 | 0.785 | missed |" in rows["KGCN, kg-lastfm-music"]
    assert "| 0.9000 | 0.785 | reached |" in rows["MKR, kg-lastfm-music"]
    # The median of 2.0, 3.0, 4.0, 5.0 and 6.0 seconds.
    assert "| 4.00 | | 14.83 (3.7x) |" in rows["CPU s of an epoch"]
    assert " | 0.2000 | 0.1000, 0.1000, 0.1000, 0.1000, 0.1000 | 0.1000 |" in rows["ndcg@10, validation"]
    partial = recsys_kg.table_of_clicks(results[:1])
    assert "| 0.9000 | 0.785 | reached so far |" in partial
