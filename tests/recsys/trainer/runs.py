"""Small real trainings of recommenders, and how two of them are compared."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.interrupting import Updates, assert_same_bits, train_through
from treadle.recsys import Config, ModelType, create_dataset, data_preparation, get_model, get_trainer, init_seed
from treadle.recsys.trainers.loop.core import find_optimizers

USERS, ITEMS, EACH = 24, 30, 12


def interactions(users: int = USERS, items: int = ITEMS, each: int = EACH) -> dict[str, list[Any]]:
    """Return what some users did, each with items that are near each other, so that there is something to learn."""
    generator = torch.Generator().manual_seed(0)
    table: dict[str, list[Any]] = {"user_id": [], "item_id": [], "rating": [], "timestamp": []}
    for user in range(users):
        near = (torch.randperm(items // 2, generator=generator)[:each] + user * items // users) % items
        for place, item in enumerate(near.tolist()):
            table["user_id"].append(f"u{user}")
            table["item_id"].append(f"i{item}")
            table["rating"].append(float(1 + (user + item) % 5))
            table["timestamp"].append(float(place))
    return table


def graph(items: int = ITEMS) -> dict[str, Any]:
    """Return a knowledge graph of all items: who made each, where that is, and what is like it."""
    triples = [(f"e{item}", "made_by", f"x{item % 7}") for item in range(items)]
    triples += [(f"e{item}", "like", f"e{(item * 3 + 1) % items}") for item in range(items)]
    triples += [(f"x{place}", "in", f"y{place % 3}") for place in range(7)]
    names = ("head_id", "relation_id", "tail_id")
    link = {"item_id": [f"i{item}" for item in range(items)], "entity_id": [f"e{item}" for item in range(items)]}
    return {"kg": {name: [row[place] for row in triples] for place, name in enumerate(names)}, "link": link}


def settings(folder: Path, **given: Any) -> dict[str, Any]:
    """Return the settings of a small training in `folder`."""
    return {
        "checkpoint_dir": str(folder / "saved"),
        "metrics": ["Recall", "NDCG", "MRR"],
        "topk": [5],
        "valid_metric": "NDCG@5",
        "train_batch_size": 64,
        "epochs": 3,
        "show_progress": False,
        "use_gpu": False,
        **given,
    }


SMALL = {"BPR": {"embedding_size": 8}, "LightGCN": {"embedding_size": 8}, "NeuMF": {"mf_embedding_size": 8}}
"""Settings that make models small."""


@dataclass
class Run:
    """A trainer and its data."""

    trainer: Any
    train: Any
    valid: Any
    test: Any

    @property
    def model(self) -> Any:
        return self.trainer.model

    @property
    def updates(self) -> tuple[int, int]:
        """The step that the last training went on from, and how many updates it made."""
        updates = next(one for one in self.trainer.callbacks if isinstance(one, Updates))
        return updates.began, updates.made

    def fit(self, **given: Any) -> Any:
        """Train, quietly."""
        if not any(isinstance(callback, Updates) for callback in self.trainer.callbacks):
            self.trainer.callbacks += (Updates(),)
        return self.trainer.fit(self.train, self.valid, **{"verbose": False, **given})


def parts(folder: Path, model: Any = "BPR", *, table: Any = None, **given: Any) -> tuple[Any, Any, Any, Any]:
    """Return settings, and the loaders of the three parts of the data."""
    name = model if isinstance(model, str) else model.__name__
    config = Config(model, "toy", config_dict=settings(folder, **{**SMALL.get(name, {}), **given}))
    further = graph() if config["MODEL_TYPE"] is ModelType.KNOWLEDGE else {}
    dataset = create_dataset(config, inter=interactions() if table is None else table, **further)
    return config, *data_preparation(config, dataset)


def make(
    folder: Path,
    model: Any = "BPR",
    *callbacks: Any,
    kind: Callable[[Any, Any], Any] | None = None,
    table: Any = None,
    double: bool = False,
    **given: Any,
) -> Run:
    """Return a trainer as a new process would make it, with its data."""
    config, train, valid, test = parts(folder, model, table=table, **given)
    init_seed(config["seed"], True)
    made = get_model(model)(config, train.dataset)
    if double:
        made = made.double()
    trainer = get_trainer(config, made) if kind is None else kind(config, made)
    trainer.callbacks += callbacks
    return Run(trainer, train, valid, test)


def fit_through(cuts: list[int], make_run: Callable[..., Run], *, saved: int = 1) -> Run:
    """Start a training again and again, each time dying after one of `cuts`, until it ends, as `train_through` does."""
    run: Run = train_through(cuts, make_run, Run.fit, saved=saved)
    return run


def state_of(trainer: Any) -> dict[str, Any]:
    """Return all that a training ends in."""
    found = find_optimizers(trainer)
    optimizers = found if isinstance(found, dict) else {"optimizer": found}
    return {
        "model": trainer.model.state_dict(),
        "optimizers": {name: one.state_dict() for name, one in optimizers.items()},
        "losses": trainer.train_loss_dict,
        "best": (trainer.best_valid_score, trainer.best_valid_result, trainer.cur_step),
    }


def assert_same_training(left: Any, right: Any) -> None:
    """Compare two trainings bit for bit."""
    assert_same_bits(state_of(left), state_of(right))
