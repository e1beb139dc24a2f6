"""Every model of the door with data of its kind, as small as it can be: what the suites of this folder train."""

from functools import cache
from pathlib import Path
from typing import Any

from tests.recsys.models import tiny_graph, tiny_ratings, tiny_shop
from tests.recsys.models.tiny_ratings import FITTED, TRAINED
from tests.recsys.models.tiny_shop import CONTEXT, INTEREST, RANKING, WHOLE
from tests.recsys.trainer.runs import Run
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer, init_seed

GENERAL = (*(name for name in TRAINED if TRAINED[name] == (name, {})), "NCL")
KNOWLEDGE = tuple(tiny_graph.PLAIN)
TRAINABLE = (*GENERAL, *RANKING, *WHOLE, "S3Rec", *INTEREST, *CONTEXT, *KNOWLEDGE)
MODELS = (*TRAINABLE, *FITTED)
"""All of them, by their names."""
OF_USERS = ("CDAE", "MultiVAE", "RecVAE", "ELSA")
"""Those whose batches are users, of which there are few."""
USERS, ITEMS = 12, 10
STAGES: dict[str, dict[str, Any]] = {
    # Strong enough for the further tasks to show beside the first one.
    "NCL": {"embedding_size": 8, "num_clusters": 3, "warm_up_step": 1, "ssl_reg": 1e-3, "proto_reg": 1e-3},
    "S3Rec": {"hidden_size": 12, "inner_size": 20, "item_attribute": "kinds", "pretrain_epochs": 1},
    "KTUP": {"train_rec_step": 1, "train_kg_step": 1, "train_batch_size": 8},
}
"""Settings with which a model comes to all its losses in two or three epochs."""


@cache
def shop() -> dict[str, dict[str, list[Any]]]:
    """Return what some users bought or only looked at, and what is known of users and items."""
    rows = [(user, step, (user + 2 * step) % ITEMS) for user in range(USERS) for step in range(4 + user % 5)]
    return {
        "inter": {
            "user_id": [f"u{user}" for user, _, _ in rows],
            "item_id": [f"i{item}" for _, _, item in rows],
            "label": [float((item + user) % 3 == 0) for user, _, item in rows],
            "timestamp": [1000.0 * user + step for user, step, _ in rows],
        },
        "user": {"user_id": [f"u{user}" for user in range(USERS)], "age": [str(user % 4) for user in range(USERS)]},
        "item": {"item_id": [f"i{item}" for item in range(ITEMS)], "price": [item / 10 for item in range(ITEMS)]},
    }


def settings(name: str, folder: Path) -> dict[str, Any]:
    """Return the settings of a small training: two epochs of three updates or more."""
    given: dict[str, Any] = {
        "checkpoint_dir": str(folder / "saved"),
        "epochs": 2,
        "learning_rate": 0.01,
        "topk": [3],
        "show_progress": False,
        "use_gpu": False,
    }
    if name in GENERAL or name in FITTED:
        batch = 6 if name in OF_USERS else 16
        own = STAGES.get(name, tiny_ratings.smaller(name))
        return {**given, "train_batch_size": batch, "valid_metric": "MRR@3", **own}
    if name in KNOWLEDGE:
        small = {"embedding_size": 8, **tiny_graph.SMALLER.get(name, {}), **STAGES.get(name, {})}
        return {**given, "train_batch_size": 16, "valid_metric": "MRR@3", "kg_unlinked_items": "keep", **small}
    given |= {"MAX_ITEM_LIST_LENGTH": 6, "train_batch_size": 20, **tiny_shop.smaller(name), **STAGES.get(name, {})}
    if name in CONTEXT:
        return {**given, "unused_col": {"inter": ["timestamp"]}}
    # Sequences need no labels: each is followed by what was chosen, and by what was not.
    given |= {"unused_col": {"inter": ["label"]}}
    if name in INTEREST:
        return {**given, "eval_args": {"mode": "uni3"}}
    return {**given, "valid_metric": "MRR@3", "train_batch_size": 12}


def tables(name: str) -> dict[str, Any]:
    """Return the data of a model."""
    if name in GENERAL or name in FITTED:
        return {"inter": tiny_ratings.ratings()}
    if name in KNOWLEDGE:
        return {"inter": tiny_ratings.ratings(), **tiny_graph.graph()}
    if name == "S3Rec":
        kinds = [["abc"[item % 3], "xy"[item % 2]][: 1 + item % 2] for item in range(ITEMS)]
        return {"inter": shop()["inter"], "item": {"item_id": shop()["item"]["item_id"], "kinds": kinds}}
    return {"inter": shop()["inter"]} if name in (*RANKING, *WHOLE) else shop()


def make(folder: Path, name: str, *callbacks: Any, double: bool = False, **given: Any) -> Run:
    """Return the trainer of a model as a new process would make it, with its data."""
    config = Config(name, "tiny", config_dict={**settings(name, folder), **given})
    train, valid, test = data_preparation(config, create_dataset(config, **tables(name)))
    init_seed(config["seed"], True)
    model = get_model(name)(config, train.dataset)
    trainer = get_trainer(config, model.double() if double else model)
    trainer.callbacks += callbacks
    return Run(trainer, train, valid, test)
