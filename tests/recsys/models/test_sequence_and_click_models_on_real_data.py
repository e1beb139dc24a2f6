"""Models of sequences and clicks on real data: as good as others have found them to be."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.recsys.data.small import real_folder
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer, init_seed

FIELDS = ("user_id", "item_id", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")
RECBOLE_AUC = {"FM": 0.7576, "WideDeep": 0.7739, "DeepFM": 0.7755}
"""What RecBole 1.2.1 reaches on the validation rows of ml-100k after five epochs, with all settings left alone."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RECBOLE_AUC)
def test_five_epochs_on_ml_100k_give_the_auc_that_recbole_reports(name: str) -> None:
    given = {"data_path": str(real_folder("ml-100k").parent), "epochs": 5, "eval_step": 5, "use_gpu": False}
    _, scores = trained(name, Config(name, "ml-100k", config_dict=given))
    assert scores == [pytest.approx(RECBOLE_AUC[name], abs=0.005)]


@pytest.mark.slow
def test_logistic_regression_on_frappe_comes_to_what_a_solver_finds() -> None:
    folder = real_folder("frappe-part")
    tables = [read_libfm(folder / f"frappe.{part}.libfm.gz") for part in ("validation", "test")]
    given = {
        "benchmark_filename": ["train", "test"],
        "field_types": dict.fromkeys(FIELDS, "token"),
        "learning_rate": 0.01,
        "weight_decay": 1 / 57_722,
        "epochs": 40,
        "use_gpu": False,
    }
    trainer, _ = trained("LR", Config("LR", "frappe", config_dict=given), inter=tables)
    found = trainer.evaluate(trainer.test_data, load_best_model=False)["auc"]
    assert found == pytest.approx(0.9311, abs=0.003)


@pytest.mark.slow
def test_sasrec_learns_ml_100k_at_all_positions() -> None:
    given = {"data_path": str(real_folder("ml-100k").parent), "epochs": 4, "eval_step": 4, "use_gpu": False}
    _, scores = trained("SASRec", Config("SASRec", "ml-100k", config_dict={**given, "hidden_dropout_prob": 0.2}))
    # The most popular items have 0.023.
    assert scores[0] > 0.03


def trained(name: str, config: Config, **tables: Any) -> tuple[Any, list[float]]:
    """Return a trainer after its training, and the scores of its evaluations."""
    train, valid, test = data_preparation(config, create_dataset(config, **tables))
    init_seed(2020, True)
    trainer = get_trainer(config, get_model(name)(config, train.dataset))
    scores: list[float] = []
    trainer.fit(train, valid, verbose=False, saved=False, callback_fn=lambda _, score: scores.append(score))
    trainer.test_data = test
    return trainer, scores


def read_libfm(path: Path) -> dict[str, list[Any]]:
    """Return rows `label index:1 index:1 ...` as columns of tokens and a label."""
    columns: dict[str, list[Any]] = {name: [] for name in ("label", *FIELDS)}
    with gzip.open(path, "rt") as lines:
        for line in lines:
            label, *values = line.split()
            columns["label"].append(float(float(label) > 0))
            for name, value in zip(FIELDS, values, strict=True):
                columns[name].append(value.partition(":")[0])
    return columns
