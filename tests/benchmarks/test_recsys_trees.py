"""Trees through the trainers and by hand have the same AUC on adult, and the table says so only if it is so."""

from pathlib import Path

import pytest

from benchmarks.recsys import trees as recsys_trees
from tests.recsys.data.small import real_folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LightGBM", "XGBoost"])
def test_the_auc_on_adult_is_that_of_the_library_called_by_hand(name: str, tmp_path: Path) -> None:
    folder = real_folder("adult")
    own = recsys_trees.through_treadle(name, folder, str(tmp_path))
    hand = recsys_trees.by_hand(name, folder)
    assert own["auc"] == pytest.approx(hand["auc"], abs=5e-7)
    assert own["logloss"] == pytest.approx(hand["logloss"], abs=5e-7)
    assert own["auc"] == pytest.approx(recsys_trees.REFERENCE.get(name, own["auc"]), abs=5e-5)


def test_what_differs_is_not_called_equal() -> None:
    value = {"auc": 0.5, "logloss": 0.25, "seconds": 1.0}
    made = recsys_trees.section(
        {"A": {"own": value, "hand": {**value, "auc": 0.50001}}, "B": {"own": value, "hand": value}}
    )
    rows = [line for line in made.splitlines() if line.startswith("| ")]
    assert rows[1].endswith("| NOT equal |")
    assert rows[2].endswith("| equal |")
