"""A shop whose customers have tastes, made on the spot: what LightGCN makes of it, and what popularity does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.console.lines import counted
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer, init_seed
from treadle.recsys.data.tables.demo_shop import ARTICLES, CUSTOMERS, DEPARTMENTS, NAME

TOP = "ndcg@10"


def train(name: str, folder: Path, epochs: int) -> tuple[Any, dict[str, float]]:
    """Train a model in a folder of its own, or go on there; return its trainer and its metrics on the test part."""
    settings: dict[str, Any] = {
        "train_batch_size": 512,
        "learning_rate": 0.01,
        "epochs": epochs,
        "metrics": ["Recall", "NDCG"],
        "topk": [10],
        "valid_metric": "NDCG@10",
        "show_progress": False,
        "run_dir": str(folder / name),
    }
    if name != "Pop":  # which has no embeddings, and no setting that says nothing
        settings["embedding_size"] = 32
    config = Config(name, NAME, config_dict=settings)
    train_part, valid_part, test_part = data_preparation(config, create_dataset(config))
    init_seed(config["seed"], config["reproducibility"])
    trainer = get_trainer(config, get_model(name)(config, train_part.dataset))
    trainer.fit(train_part, valid_part, verbose=False)
    return trainer, dict(trainer.evaluate(test_part))


def run(folder: Path, say: Callable[[str], object], epochs: int = 25) -> None:
    """Train both models, compare them on the test part, and recommend.

    Args:
        folder: Where the folders of the two runs are.
        say: Where to say it.
        epochs: The most epochs to train LightGCN for.
    """
    say(f"{CUSTOMERS} customers and {ARTICLES} articles of {len(DEPARTMENTS)} departments: {', '.join(DEPARTMENTS)}.")
    _, popular = train("Pop", folder, 1)
    say(f"What is popular:  {TOP} {popular[TOP]:.3f} on the test part")
    trainer, learned = train("LightGCN", folder, epochs)
    made = len(trainer.train_loss_dict)
    early = ", where it stopped: the validation was no better for a while" if made < epochs else ""
    say(f"LightGCN:         {TOP} {learned[TOP]:.3f} on the test part, after {counted(made, 'epoch')}{early}")
    say("\nRecommended:")
    for customer in (0, 3):
        who = f"customer {customer}"
        taste = DEPARTMENTS[customer % len(DEPARTMENTS)]
        say(f"  {who}, who likes {taste}: {', '.join(trainer.recommend([who], k=5)[who])}")
