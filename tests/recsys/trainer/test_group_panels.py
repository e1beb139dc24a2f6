"""Metrics by groups of users and items, as tables on the page of a run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recsys.trainer.runs import settings
from tests.recsys.trainer.trees import make as make_trees
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer
from treadle.recsys.evaluation.group_panels import write_group_panels

ITEMS = 12


def interactions() -> dict[str, list[Any]]:
    """Return what users did, of whom each has one more interaction than the one before, from four on."""
    pairs = [(user, (user * 5 + place) % ITEMS) for user in range(6) for place in range(4 + user)]
    return {
        "user_id": [f"u{user}" for user, _ in pairs],
        "item_id": [f"i{item}" for _, item in pairs],
        "timestamp": [float(place) for place, _ in enumerate(pairs)],
    }


def trained(folder: Path, model: str, **given: Any) -> tuple[Any, Any, Any]:
    chosen = settings(folder, topk=[3], valid_metric="NDCG@3", epochs=1, **given)
    config = Config(model, "tiny", config_dict=chosen)
    train, valid, test = data_preparation(config, create_dataset(config, inter=interactions()))
    trainer = get_trainer(config, get_model(model)(config, train.dataset))
    trainer.fit(train, valid, verbose=False)
    return trainer, train, test


def table(path: Path) -> dict[str, list[str]]:
    content = json.loads(path.read_text())
    assert content["columns"] == ["interactions in training", "users", "recall@3", "ndcg@3", "mrr@3"]
    return {row[0]: row[1:] for row in content["rows"]}


def test_users_and_items_are_divided_and_the_last_row_is_the_whole(tmp_path: Path) -> None:
    trainer, train, test = trained(tmp_path, "Pop", eval_args={"split": {"LS": "valid_and_test"}, "order": "TO"})
    files = write_group_panels(trainer, train, test, tmp_path)
    assert [file.stem for file in files] == ["Test_metrics_by_activity_of_users", "Test_metrics_by_popularity_of_items"]
    users = table(files[0])
    # Without the two that are held out they have 2, 3, ... 7; a quarter each would be cut at 3, 5 and 6.
    assert {label: row[0] for label, row in users.items()} == {"0-2": "1", "3-4": "2", "5": "1", "6+": "2", "all": "6"}
    whole = trainer.evaluate(test, load_best_model=False).exact
    assert users["all"][1:] == [f"{whole[name]:.4f}" for name in ("recall@3", "ndcg@3", "mrr@3")]
    mean = sum(int(row[0]) * float(row[1]) for label, row in users.items() if label != "all") / 6
    assert mean == pytest.approx(whole["recall@3"], abs=1e-3)


def test_rows_of_sequences_belong_to_their_users(tmp_path: Path) -> None:
    trainer, train, test = trained(tmp_path, "GRU4Rec", hidden_size=4, embedding_size=4, num_layers=1)
    activity = table(write_group_panels(trainer, train, test, tmp_path)[0])
    assert sum(int(row[0]) for label, row in activity.items() if label != "all") == int(activity["all"][0]) == 6


def test_rows_with_labels_have_nobody_to_divide(tmp_path: Path) -> None:
    run = make_trees(tmp_path, "LightGBM")
    run.fit()
    assert write_group_panels(run.trainer, run.train, run.test, tmp_path) == []


def test_the_random_numbers_of_a_run_are_left_alone(tmp_path: Path) -> None:
    trainer, train, test = trained(tmp_path, "BPR", embedding_size=4)
    before = torch.get_rng_state()
    write_group_panels(trainer, train, test, tmp_path)
    assert torch.equal(before, torch.get_rng_state())
