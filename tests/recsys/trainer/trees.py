"""Small boosting runs: clicks that follow from a number, a token and several tokens."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.interrupting import CutAt, CutError
from tests.recsys.trainer.runs import Run
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer
from treadle.recsys.models.boosting.base import as_tensor

ROWS = 400
LIBRARIES = ("LightGBM", "XGBoost")
SMALL = {
    "LightGBM": {"lgb_params": {"num_leaves": 7, "min_data_in_leaf": 5}, "lgb_num_boost_round": 8},
    "XGBoost": {"xgb_params": {"max_depth": 3}, "xgb_num_boost_round": 8},
}
SAMPLING = {
    "LightGBM": {"lgb_params": {**SMALL["LightGBM"]["lgb_params"], "bagging_fraction": 0.5, "bagging_freq": 1}},
    "XGBoost": {"xgb_params": {**SMALL["XGBoost"]["xgb_params"], "subsample": 0.5}},
}
"""Parameters that have the library draw rows."""


def table() -> dict[str, Any]:
    """Return the rows: prices, colours (some missing), and whether somebody clicked."""
    random = np.random.default_rng(0)
    price = random.integers(0, 100, ROWS)
    colour = random.choice(["red", "green", "blue", "grey"], ROWS)
    score = price / 50 - 1 + np.isin(colour, ["red", "grey"]) + random.normal(size=ROWS)
    return {
        "price": price.astype(float).tolist(),
        "colour": [None if place % 11 == 0 else str(one) for place, one in enumerate(colour)],
        "label": (score > 0.5).astype(float).tolist(),
    }


def make(folder: Path, name: str, *callbacks: Any, **given: Any) -> Run:
    """Return the trainer of a model as a new process would make it, with its data."""
    prefix = "lgb" if name == "LightGBM" else "xgb"
    settings = {
        "checkpoint_dir": str(folder / "saved"),
        "USER_ID_FIELD": None,
        "ITEM_ID_FIELD": None,
        "TIME_FIELD": None,
        "show_progress": False,
        "use_gpu": False,
        "eval_args": {"split": {"RS": [0.6, 0.2, 0.2]}},
        f"{prefix}_early_stopping_rounds": None,
        **SMALL[name],
        **given,
    }
    config = Config(name, "clicks", config_dict=settings)
    train, valid, test = data_preparation(config, create_dataset(config, inter=table()))
    trainer = get_trainer(config, get_model(name)(config, train.dataset))
    trainer.callbacks += callbacks
    return Run(trainer, train, valid, test)


def cut_and_resumed(folder: Path, name: str, step: int, **given: Any) -> Run:
    """Return a training that died after `step` rounds and was started again."""
    given = {"run_dir": str(folder / "run"), "save_every": "4 steps", **given}
    with suppress(CutError):
        make(folder, name, CutAt(step), **given).fit()
    resumed = make(folder, name, **given)
    resumed.fit()
    assert resumed.updates[0] == (step - 1) // 4 * 4, "it went on from another round than the last one saved"
    return resumed


def outcome(folder: Path, name: str) -> dict[str, Any]:
    """Return what a training ends in that stops early, and one that was cut on the way there and started again."""
    prefix = "lgb" if name == "LightGBM" else "xgb"
    early = {f"{prefix}_num_boost_round": 60, f"{prefix}_early_stopping_rounds": 3}
    whole = make(folder / "whole", name, **early)
    score, result = whole.fit()
    resumed = cut_and_resumed(folder / "cut", name, 5, **early)
    return {
        "text": as_tensor(whole.model.grown().text),
        "resumed": as_tensor(resumed.model.grown().text),
        "rounds": whole.trainer.rounds.done,
        "score": score,
        "valid": result.exact,
        "test": whole.trainer.evaluate(whole.test).exact,
        "boosters": len(list((folder / "whole" / "saved").glob(f"*{whole.trainer.rounds.boosting.suffix}"))),
    }
