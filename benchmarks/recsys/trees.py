"""LightGBM and XGBoost on adult: through the trainers of trees, and called by hand on rows that are read apart.

    python -m benchmarks.recsys.trees --write

The set is looked for in the folder that TREADLE_DATA names. The one who calls the libraries by hand reads the files
with pandas and knows nothing of Treadle.
"""

import argparse
import gzip
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import provenance
from benchmarks.results import write_section

NAMES = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income",
]
NUMBERS = {"age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"}
ROUNDS = 200
PARAMS: dict[str, dict[str, Any]] = {
    "LightGBM": {"objective": "binary", "learning_rate": 0.05, "verbosity": -1, "num_threads": 1},
    "XGBoost": {"objective": "binary:logistic", "eta": 0.05, "verbosity": 0, "nthread": 1},
}
REFERENCE = {"LightGBM": 0.9280}
"""The AUC that is known for these files."""


def read_rows(folder: Path, part: str) -> dict[str, list[Any]]:
    """Return the rows of a part, "data" or "test", as columns; `?` is a missing token."""
    lines = gzip.decompress((folder / f"adult.{part}.gz").read_bytes()).decode().splitlines()
    rows = [line.split(", ") for line in lines if line.strip()]
    columns: dict[str, list[Any]] = dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True))
    columns["label"] = [float(text.startswith(">50K")) for text in columns.pop("income")]
    for name in NAMES[:-1]:
        values = columns[name]
        columns[name] = (
            [float(text) for text in values] if name in NUMBERS else [None if t == "?" else t for t in values]
        )
    return columns


def through_treadle(name: str, folder: Path, kept: str) -> dict[str, float]:
    """Return AUC and log loss on the test part, and the seconds of the training."""
    from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer

    prefix = {"LightGBM": "lgb", "XGBoost": "xgb"}[name]
    given = {
        **dict.fromkeys(("USER_ID_FIELD", "ITEM_ID_FIELD", "TIME_FIELD")),
        f"{prefix}_params": PARAMS[name],
        f"{prefix}_num_boost_round": ROUNDS,
        "checkpoint_dir": kept,
        "show_progress": False,
        "use_gpu": False,
    }
    config = Config(name, "adult", config_dict=given)
    dataset = create_dataset(config, inter=[read_rows(folder, "data"), read_rows(folder, "test")])
    train, valid, test = data_preparation(config, dataset)
    trainer = get_trainer(config, get_model(name)(config, train.dataset))
    import_module(name.lower())
    began = time.process_time()
    trainer.fit(train, valid, verbose=False)
    seconds = time.process_time() - began
    return {**trainer.evaluate(test).exact, "seconds": seconds}


def by_hand(name: str, folder: Path) -> dict[str, float]:
    """Return the same of the library, called as its own manual says, on rows that pandas has read."""
    import pandas
    from sklearn.metrics import log_loss, roc_auc_score

    train, test = (
        pandas.read_csv(folder / f"adult.{part}.gz", names=NAMES, sep=", ", engine="python", na_values="?")
        for part in ("data", "test")
    )
    answers = [part.pop("income").str.startswith(">50K").to_numpy(dtype=float) for part in (train, test)]
    for column in set(NAMES[:-1]) - NUMBERS:
        known = pandas.CategoricalDtype(train[column].dropna().unique())
        train[column] = train[column].astype(known)
        test[column] = test[column].where(test[column].isin(known.categories)).astype(known)
    began = time.process_time()
    scores = _hand_trained(name, train, answers[0], test)
    seconds = time.process_time() - began
    return {"auc": roc_auc_score(answers[1], scores), "logloss": log_loss(answers[1], scores), "seconds": seconds}


def _hand_trained(name: str, train: Any, labels: Any, test: Any) -> np.ndarray[Any, Any]:
    if name == "LightGBM":
        import lightgbm

        booster = lightgbm.train(PARAMS[name], lightgbm.Dataset(train, labels), ROUNDS)
        found: np.ndarray[Any, Any] = booster.predict(test)
        return found
    import xgboost

    rows = xgboost.DMatrix(train, labels, enable_categorical=True)
    booster = xgboost.train(PARAMS[name], rows, ROUNDS)
    predicted: np.ndarray[Any, Any] = booster.predict(xgboost.DMatrix(test, enable_categorical=True))
    return predicted


def section(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the section for RESULTS.md."""
    rows = [
        "| library | AUC here | AUC by hand | log loss here | by hand | CPU s here | by hand | |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name, found in results.items():
        own, hand = found["own"], found["hand"]
        same = "equal" if round(own["auc"], 6) == round(hand["auc"], 6) else "NOT equal"
        rows.append(
            f"| {name} | {own['auc']:.6f} | {hand['auc']:.6f} | {own['logloss']:.6f} | {hand['logloss']:.6f} | "
            f"{own['seconds']:.1f} | {hand['seconds']:.1f} | {same} |"
        )
    facts = provenance("recsys_trees", ("lightgbm", "xgboost", "xgboost-cpu", "torch", "treadle"), threads=1)
    text = (
        f"adult, its own test part, {ROUNDS} rounds at a rate of 0.05, everything else as the libraries have it; `?` "
        "is a missing token.\nBy hand: the library's own `train`, on rows that pandas has read and made categories of. "
        f"For LightGBM {REFERENCE['LightGBM']:.4f} is known."
    )
    return f"## Trees on adult, on the CPU\n\n{facts}\n\n{text}\n\n" + "\n".join(rows) + "\n"


def measure(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return the results of both libraries, here and by hand."""
    with tempfile.TemporaryDirectory() as kept:
        return {name: {"own": through_treadle(name, folder, kept), "hand": by_hand(name, folder)} for name in PARAMS}


def main() -> None:
    """Measure, and print or write the section."""
    from treadle.data import data_folder

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the section into RESULTS.md")
    chosen = parser.parse_args()
    made = section(measure(data_folder("adult")))
    if chosen.write:
        write_section("recsys-trees", made)
    print(made)


if __name__ == "__main__":
    main()
