"""What the benchmark of the bridge says of its figures."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recsys import bridge as recsys_bridge


def found(*scores: float, first: tuple[float, ...] = (0.1, 0.1), popularity: float = 0.2) -> dict[str, Any]:
    kind = "general_recommender"
    return {
        "kind": kind,
        "metric": "MRR@10",
        "popularity": popularity,
        "scores": list(scores),
        "first": list(first),
    }


@pytest.mark.parametrize(
    ("bridge", "recbole", "wanted"),
    [
        (found(0.1, 0.3), None, "beats popularity"),
        (found(0.1, 0.2), None, "not compared"),
        (found(0.1, 0.1), {"result": {"mrr@10": 0.105}}, "as RecBole"),
        (found(0.1, 0.1), {"result": {"mrr@10": 0.106}}, "below RecBole"),
        (found(0.1, 0.1), {"result": {"mrr@10": 0.09}}, "above RecBole"),
        (found(0.1, 0.1), {"reason": "KeyError"}, "RecBole does not run it"),
        ({"reason": "KeyError"}, None, "does not run"),
    ],
    ids=["better", "unknown", "close", "below", "above", "alone", "broken"],
)
def test_a_model_beats_popularity_or_is_compared(bridge: Any, recbole: Any, wanted: str) -> None:
    assert recsys_bridge.verdict(bridge, recbole) == wanted


def test_the_section_has_both_columns_and_the_reasons(tmp_path: Path) -> None:
    results = {
        "bridge-A": found(0.1, 0.3),
        "bridge-B": found(0.1, 0.1),
        "recbole-B": {"result": {"mrr@10": 0.1}},
        "bridge-C": {"reason": "KeyError: nothing"},
    }
    for name, result in results.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    text = recsys_bridge.section(argparse.Namespace(out=tmp_path, patience=60, note=""))
    assert "Of RecBole's 3 models 2 train and are evaluated." in text
    assert "beats popularity 1, as RecBole 1, does not run 1." in text
    assert "| A | general | MRR@10 | 0.2000 | 0.1000 | 0.3000, 2 |  | beats popularity |" in text
    assert "| B | general | MRR@10 | 0.2000 | 0.1000 | 0.1000, 1 | 0.1000 | as RecBole |" in text
    assert text.endswith("- C: KeyError: nothing")
