"""What cannot be trained on is refused before training starts, by a message that says what is wrong and what to do."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.recsys.data.small import write_table
from tests.recsys.trainer.runs import interactions, make, settings
from treadle.errors import ConfigError, DataError, TreadleError, UnknownMetricError
from treadle.recsys import Interaction, run_recbole
from treadle.recsys.models.general_recommender import BPR

HEADER = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")


class Untrained(BPR):
    """A model that nobody may begin to train."""

    def calculate_loss(self, interaction: Interaction) -> Any:
        raise AssertionError("the training has started")


def attempt(folder: Path, header: tuple[str, ...] = HEADER, more: Sequence[tuple[Any, ...]] = (), **given: Any) -> None:
    """Write data and train on it, as a user does; the training itself would fail."""
    rows = [*zip(*interactions().values(), strict=True), *more]
    write_table(folder / "data" / "toy", "toy.inter", header, rows)
    run_recbole(Untrained, "toy", config_dict=settings(folder, data_path=str(folder / "data"), **given))


def test_the_training_would_have_started(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the training has started"):
        attempt(tmp_path)


ALL = {"load_col": {"inter": "*"}}
BAD: dict[str, tuple[dict[str, Any], type[TreadleError], str]] = {
    "a missing column": (
        {"load_col": {"inter": ["user_id", "item_id", "ratng"]}},
        DataError,
        "load_col names the field 'ratng' of toy.inter, which is not there; did you mean 'rating'?",
    ),
    "a missing column of times": (
        {"TIME_FIELD": "when", "eval_args": {"order": "TO"}},
        ConfigError,
        "which needs the time of interactions, but TIME_FIELD='when' is not loaded; see load_col: the",
    ),
    "a missing column of labels": (
        {"threshold": {"stars": 3}},
        ConfigError,
        "the field 'stars', which is not loaded from toy.inter; loaded are ['user_id', 'item_id'], see load_col",
    ),
    "an empty split": (
        {"eval_args": {"split": {"TS": [0.99999, 0.000005, 0.000005]}, "order": "TO", "group_by": "none"}, **ALL},
        DataError,
        "the test part of 'toy' has no rows: 288 interactions are divided by {'TS': [0.99999, 5e-06, 5e-06]}; give",
    ),
    "nothing left": (
        {"val_interval": {"rating": "[9,inf)"}, **ALL},
        DataError,
        "no row of toy.inter is left: 288 interactions are read, 288 after leaving out rows without ids, 288 after "
        "rm_dup_inter=None, 0 after val_interval={'rating': '[9,inf)'}",
    ),
    "top-k above the number of items": (
        {"topk": [31], "valid_metric": "NDCG@31"},
        ConfigError,
        "topk=[31]: 31 is more than the 30 items of 'toy'; choose a smaller k",
    ),
    "a metric that decides and is not computed": (
        {"valid_metric": "Hit@5"},
        UnknownMetricError,
        "valid_metric='Hit@5' is not calculated, but ['recall@5', 'ndcg@5', 'mrr@5'] are; choose one of these",
    ),
    "a cut-off that decides and is not computed": (
        {"valid_metric": "NDCG@7"},
        UnknownMetricError,
        "valid_metric='NDCG@7' is not calculated, but ['recall@5', 'ndcg@5', 'mrr@5'] are; add 7 to topk",
    ),
    "a metric that does not exist": (
        {"metrics": ["Recal"]},
        ConfigError,
        "there is no metric 'Recal'; did you mean 'recall'?",
    ),
    "a setting that is nearly one": (
        {"learning_rat": 0.1},
        ConfigError,
        "learning_rat=0.1 in config_dict: nothing reads it; did you mean 'learning_rate'?",
    ),
    "a learner that does not exist": (
        {"learner": "adm"},
        ConfigError,
        "learner='adm' does not exist; did you mean 'adam'?",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_named_before_training_starts(tmp_path: Path, case: str) -> None:
    given, kind, message = BAD[case]
    with pytest.raises(kind, match=re.escape(message)):
        attempt(tmp_path, **given)


def test_a_field_type_that_does_not_exist_is_named_before_training_starts(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"field 'rating' of toy\.inter has the type 'flot', which does not exist; did you mean 'float'"
    ):
        attempt(tmp_path, header=("user_id:token", "item_id:token", "rating:flot", "timestamp:float"))


def test_a_user_without_training_rows_is_named_before_training_starts(tmp_path: Path) -> None:
    late = [("late", "i1", 3.0, 1000.0), ("late", "i2", 3.0, 1001.0)]
    by_time = {"split": {"RS": [0.8, 0.1, 0.1]}, "order": "TO", "group_by": "none"}
    with pytest.raises(DataError, match="users 'late' of the test part have no training row; set cold_users to 'drop'"):
        attempt(tmp_path, more=late, eval_args=by_time, **ALL)


def test_an_id_never_seen_is_named_with_the_nearest(tmp_path: Path) -> None:
    run = make(tmp_path, Untrained)
    with pytest.raises(DataError, match="'u99'"):
        run.train.dataset.token2id("user_id", "u99")
    with pytest.raises(DataError, match="'i99'"):
        run.trainer.similar_items("i99", data=run.train)
