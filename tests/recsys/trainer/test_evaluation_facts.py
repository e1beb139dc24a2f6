"""What metrics need to know of users and items comes from the data set, by settings; results come by groups."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.recsys.trainer.runs import interactions, settings
from treadle.errors import ConfigError
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer
from treadle.recsys.trainers.results import decoded_metrics, encoded_metrics, groups2str

USERS = {
    "user_id": [f"u{user}" for user in range(24)],
    "side": ["left" if user % 3 else "right" for user in range(24)],
    "age": [float(20 + user) for user in range(24)],
}
ITEMS = {
    "item_id": [f"i{item}" for item in range(30)],
    "genre": [[["drama", "crime", "news"][item % 3], *(["long"] if item % 5 == 0 else [])] for item in range(30)],
    "maker": [f"m{item % 2}" for item in range(30)],
}
ALL = [
    *("NDCG", "GradedNDCG", "IntraListDiversity", "Novelty", "Serendipity", "PopularityLift", "Miscalibration"),
    *("UserCoverage", "FirstStageRecall", "UserRecallGap", "ItemRecallRatio", "ItemExposureGap"),
]
TYPES = {"side": "token", "age": "float", "genre": "token_seq", "maker": "token"}
SPLIT = {"split": {"LS": "valid_and_test"}, "order": "TO"}


def prepared(folder: Path, model: str = "Pop", **given: Any) -> tuple[Any, Any, Any, Any]:
    chosen: dict[str, Any] = {
        "load_col": None,
        "field_types": TYPES,
        "epochs": 1,
        "metrics": ALL,
        "first_stage_topk": [9],
        "item_category_field": "genre",
        "user_groups": ["side", "age"],
        "item_groups": ["maker", "popularity"],
        "eval_args": SPLIT,
        **given,
    }
    config = Config(model, "tiny", config_dict=settings(folder, **chosen))
    data = create_dataset(config, inter=interactions(), user=USERS, item=ITEMS)
    train, valid, test = data_preparation(config, data)
    return get_trainer(config, get_model(model)(config, train.dataset).to(config["device"])), train, valid, test


def test_every_metric_is_calculated_from_the_tables_of_a_data_set(tmp_path: Path) -> None:
    uneven = {"split": {"RS": [0.7, 0.1, 0.2]}}
    trainer, train, valid, test = prepared(tmp_path, eval_args=uneven)
    trainer.fit(train, valid, verbose=False)
    found = trainer.evaluate(test)
    assert len(found) == len(ALL)
    assert found["usercoverage@5"] == 1.0
    assert found["popularitylift@5"] > 0
    assert 0 <= found["miscalibration@5"] <= 1
    sides = found.groups["side"]
    assert found.group_users["side"] == {"right": 8, "left": 16}
    recall = [sides[label]["firststagerecall@9"] for label in ("right", "left")]
    assert found.exact["firststagerecall@9"] == pytest.approx((8 * recall[0] + 16 * recall[1]) / 24)
    assert list(found.groups["age"]) == ["below 26", "26 to 32", "32 to 38", "from 38"]
    assert set(found.groups["maker"]) == {"m0", "m1"}
    assert groups2str(found)[0].startswith("side right (8 users): ndcg@5 : 0.")


def test_grades_are_the_ratings_of_what_is_to_be_found(tmp_path: Path) -> None:
    trainer, train, valid, test = prepared(tmp_path)
    trainer.fit(train, valid, verbose=False)
    graded = trainer.evaluate(test).exact
    # With one thing to be found its grade has no say, but for a grade of 0, which leaves the user out.
    assert graded["gradedndcg@5"] == pytest.approx(graded["ndcg@5"])


def test_a_sequential_model_has_the_groups_and_histories_of_its_rows(tmp_path: Path) -> None:
    small = {"hidden_size": 8, "embedding_size": 8, "num_layers": 1}
    trainer, train, valid, test = prepared(tmp_path, "GRU4Rec", user_groups=["side"], **small)
    trainer.fit(train, valid, verbose=False)
    found = trainer.evaluate(test)
    assert found.group_users["side"] == {"right": 8, "left": 16}
    assert np.isfinite(list(found.values())).all()


def test_groups_are_kept_with_the_best_result(tmp_path: Path) -> None:
    trainer, train, valid, _ = prepared(tmp_path)
    _, best = trainer.fit(train, valid, verbose=False)
    again = decoded_metrics(encoded_metrics(best))
    assert (again, again.exact, again.groups) == (best, best.exact, best.groups)


def test_cold_users_and_items_are_evaluated_apart(tmp_path: Path) -> None:
    cold = {
        "user_groups": ["cold"],
        "item_groups": ["cold"],
        "metrics": ["NDCG", "UserRecallGap"],
        "cold_users": "keep",
    }
    trainer, train, valid, test = prepared(tmp_path, eval_args={"split": {"CU": [0.5, 0.0, 0.5]}}, **cold)
    trainer.fit(train, None, verbose=False)
    found = trainer.evaluate(test, load_best_model=False)
    assert valid is None
    assert found.group_users["cold users"] == {"cold": 12}
    assert found.groups["cold users"]["cold"]["ndcg@5"] == found.exact["ndcg@5"]
    trainer, train, _, test = prepared(tmp_path, eval_args={"split": {"CI": [0.5, 0.0, 0.5]}}, **cold)
    trainer.fit(train, None, verbose=False)
    assert set(trainer.evaluate(test, load_best_model=False).groups["cold items"]) == {"cold"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"item_category_field": "genres"},
            "item_category_field names 'genres', which is no field of items that is loaded (load_col: {item: [item_id, "
            "genres]} would load it); did you mean 'genre'?",
        ),
        (
            {"user_groups": ["gender"]},
            "user_groups names 'gender', which is no field of users that is loaded (load_col: {user: [user_id, "
            "gender]} would load it); there are ['activity', 'cold', 'side', 'age']",
        ),
        (
            {"item_groups": ["genre"]},
            "item_groups names 'genre', which has several values for each item; groups need one",
        ),
        ({"item_category_field": "maker_id"}, "item_category_field names 'maker_id', which is no field of items"),
        (
            {"relevance_field": "stars"},
            "GradedNDCG needs to know what each positive is worth, and relevance_field='stars'",
        ),
        ({"relevance_field": "item_id"}, "relevance_field='item_id' holds token, not numbers"),
    ],
)
def test_what_the_data_does_not_have_is_told_before_the_training(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    trainer, train, valid, _ = prepared(tmp_path, **given)
    with pytest.raises(ConfigError) as error:
        trainer.fit(train, valid, verbose=False)
    assert str(error.value).startswith(message)


def test_a_trainer_that_has_not_seen_the_training_data_says_so(tmp_path: Path) -> None:
    trainer, _, valid, _ = prepared(tmp_path, metrics=["NDCG"])
    with pytest.raises(ConfigError, match=r"^\['user_groups', 'item_groups'\] go by the data for training, which"):
        trainer.evaluate(valid, load_best_model=False)
