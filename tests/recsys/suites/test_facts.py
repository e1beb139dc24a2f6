"""What RecBole 1.2.1 is known to get wrong, facts 1, 2, 3, 8 and 10, on the way that a user takes.

The other facts, and the parts of these, are tested where they belong: look for `fact_4`, `fact_5` and so on.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from tests.recsys.suites.every_model import make, shop
from tests.recsys.trainer import runs
from treadle.recsys import Config, Interaction, create_dataset, data_preparation, get_model, get_trainer, model_names
from treadle.recsys.config.defaults import packaged
from treadle.recsys.models.general_recommender import BPR


@pytest.mark.parametrize("name", ["BPR", "LightGCN", "DeepFM", "DIN"])
def test_fact_1_models_train_from_data_frames_with_the_packages_of_today(tmp_path: Path, name: str) -> None:
    frames = {suffix: pd.DataFrame(columns) for suffix, columns in shop().items()}
    frames["item"]["kinds"] = [None if row == 3 else ["a", "b"][: 1 + row % 2] for row in range(len(frames["item"]))]
    frames["user"].loc[2, "age"] = None
    given: dict[str, Any] = {"epochs": 1, "topk": [3], "valid_metric": "MRR@3"}
    if name in ("DeepFM", "DIN"):
        given = {"epochs": 1} | ({} if name == "DeepFM" else {"unused_col": {"inter": ["label"]}})
        given |= {} if name == "DeepFM" else {"eval_args": {"mode": "uni3"}}
    small = {"checkpoint_dir": str(tmp_path), "embedding_size": 8, "use_gpu": False, "show_progress": False}
    config = Config(name, "frames", config_dict={**small, **given})
    train, valid, test = data_preparation(config, create_dataset(config, **frames))
    trainer = get_trainer(config, get_model(name)(config, train.dataset))
    trainer.fit(train, valid, verbose=False)
    assert all(value >= 0 for value in trainer.evaluate(test).values())


def test_fact_2_the_best_model_is_tested_from_a_file_that_runs_no_code(tmp_path: Path) -> None:
    run = runs.make(tmp_path, epochs=2)
    run.fit()
    tested = run.trainer.evaluate(run.test)
    # The name ends in .pth, and torch reads it without running anything.
    saved = torch.load(run.trainer.saved_model_file, weights_only=True)
    assert "user_embedding.weight" in saved["state_dict"]
    other = runs.make(tmp_path, epochs=2)
    assert other.trainer.evaluate(other.test, model_file=run.trainer.saved_model_file) == tested


def test_fact_3_what_came_after_the_best_epoch_is_not_lost(tmp_path: Path) -> None:
    # The first epoch is the best one, and the run ends after the third.
    class Falling(BPR):
        def full_sort_predict(self, interaction: Interaction) -> torch.Tensor:
            scores = super().full_sort_predict(interaction)
            return scores if self.epochs_begun < 2 else -scores

        def start_epoch(self, epoch: int) -> None:
            self.epochs_begun = epoch + 1

    given = {"embedding_size": 8, "learning_rate": 0.05, "save_every": "1 epoch"}
    first = runs.make(tmp_path, Falling, epochs=3, **given)
    first.fit()
    second = runs.make(tmp_path, Falling, epochs=5, **given)
    second.trainer.resume_checkpoint(first.trainer.saved_model_file)
    second.fit()
    whole = runs.make(tmp_path, Falling, epochs=5, **given)
    whole.fit()
    assert list(second.trainer.train_loss_dict.items())[:3] == list(first.trainer.train_loss_dict.items())
    runs.assert_same_training(second.trainer, whole.trainer)


@pytest.mark.parametrize("scaled", [False, True], ids=["as they are", "normalised"])
def test_fact_8_the_last_items_of_users_are_held_out_though_float32_cannot_tell_the_times(
    tmp_path: Path, scaled: bool
) -> None:
    # Seconds since 1970 that differ by one: in float32 they are all the same.
    users = [f"u{user}" for user in range(6) for _ in range(6)]
    items = [f"i{(user + step) % 9}" for user in range(6) for step in range(6)]
    times = [1_700_000_000.0 + step for _ in range(6) for step in range(6)]
    # The rows come latest first, so that an order that is lost shows.
    table = {"user_id": users[::-1], "item_id": items[::-1], "timestamp": times[::-1]}
    given = {"normalize_all": scaled, "checkpoint_dir": str(tmp_path), "topk": [3], "valid_metric": "MRR@3"}
    config = Config("GRU4Rec", "times", config_dict={**given, "use_gpu": False})
    _, valid, test = data_preparation(config, create_dataset(config, inter=table))
    for loader, step in ((valid, 4), (test, 5)):
        data = loader.dataset
        owners = data.id2token("user_id", data.inter_feat["user_id"]).tolist()
        held = data.id2token("item_id", data.inter_feat["item_id"]).tolist()
        assert {user: f"i{(int(user[1:]) + step) % 9}" for user in owners} == dict(zip(owners, held, strict=True))


@pytest.mark.parametrize("name", model_names())
def test_fact_10_a_model_finds_the_settings_of_its_exact_name(name: str) -> None:
    assert packaged(f"model/{get_model(name).__name__}") is not None


def test_fact_10_a_model_that_does_not_change_stops_early(tmp_path: Path) -> None:
    class Still(BPR):
        def calculate_loss(self, interaction: Interaction) -> torch.Tensor:
            return super().calculate_loss(interaction) * 0

    run = runs.make(tmp_path, Still, epochs=20, stopping_step=2, embedding_size=8)
    run.fit()
    # The first evaluation is the best; the third after it is one more than stopping_step.
    assert len(run.trainer.train_loss_dict) == 4


def test_fact_4_an_evaluation_scores_all_users_of_a_small_shop_at_once(tmp_path: Path) -> None:
    run = make(tmp_path, "BPR")
    calls: list[int] = []
    score = run.model.full_sort_predict
    run.model.full_sort_predict = lambda rows: calls.append(len(rows)) or score(rows)
    run.trainer.evaluate(run.valid, load_best_model=False)
    assert calls == [16]
