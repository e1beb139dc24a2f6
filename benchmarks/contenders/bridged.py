"""A model of RecBole's package through the bridge: told what to do in JSON, answers in one line of JSON.

`python -m benchmarks.contenders.bridged '{"model": "ENMF", "dataset": "ml-100k", "epochs": 2, "settings": {}}'`

The answer has the validation metric after each epoch, and that of popularity on the same data. With `"most": 20`
a model that popularity beats after `epochs` is trained again, for that many epochs, or for as many as there is
time for in `patience` seconds.
"""

import json
import sys
import tempfile
import time
from typing import Any

import torch
from torch import Tensor

from benchmarks.contenders.recbole_timed import ANSWER
from treadle.recsys import Config, PretrainTrainer, Trainer, compat
from treadle.recsys.models.abstract_recommender import AbstractRecommender
from treadle.recsys.quick_start import build


class Popularity(AbstractRecommender):
    """Scores an item by how often it is used in training, whoever asks."""

    def __init__(self, config: Config, dataset: Any) -> None:
        super().__init__()
        self.ITEM_ID = str(config["ITEM_ID_FIELD"])
        items = dataset.user_item_pairs()[1]
        self.register_buffer("counts", torch.bincount(items, minlength=dataset.item_num).float())
        # Nothing is trained; a trainer wants something to train.
        self.nothing = torch.nn.Parameter(torch.zeros(1))

    def predict(self, interaction: Any) -> Tensor:
        """Return how often the item of each row is used; for metrics of values, as a share."""
        counts: Tensor = self.counts
        return counts[interaction[self.ITEM_ID]] / counts.max()

    def full_sort_predict(self, interaction: Any) -> Tensor:
        """Return how often each item is used, for every row."""
        counts: Tensor = self.counts
        return counts.expand(len(interaction), -1)


def popularity(config: Config, train_data: Any, valid_data: Any) -> float:
    """Return the validation metric of popularity."""
    trainer = Trainer(config, Popularity(config, train_data.dataset))
    result = trainer.evaluate(valid_data, load_best_model=False)
    assert result is not None
    return float(result[str(config["valid_metric"]).lower()])


def train(task: dict[str, Any], epochs: int) -> dict[str, Any]:
    """Train a model, and return its validation metric after each epoch beside that of popularity."""
    with tempfile.TemporaryDirectory() as folder:
        fixed = {"epochs": epochs, "stopping_step": epochs, "show_progress": False, "checkpoint_dir": folder}
        model = compat.get_model(task["model"])
        config = Config(model, task["dataset"], config_dict={**fixed, **task["settings"]})
        trainer, _, train_data, valid_data, _ = build(config)
        if isinstance(trainer, PretrainTrainer):
            # It would train its first stage, which nobody evaluates.
            trainer = Trainer(config, trainer.model)
        baseline = popularity(config, train_data, valid_data)
        began = time.perf_counter()
        _, result = trainer.fit(train_data, valid_data, verbose=False, saved=False)
        scores = trainer.valid_scores()
    return {
        "kind": config["MODEL_TYPE"].name.lower(),
        "metric": str(config["valid_metric"]),
        "popularity": baseline,
        "scores": scores,
        "result": dict(result),
        "seconds": time.perf_counter() - began,
        "device": str(trainer.device),
    }


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Train for as many epochs as asked for, and for more if popularity is better."""
    found = train(task, task["epochs"])
    first, most = found["scores"], task.get("most", 0)
    if most > task["epochs"] and max(first) <= found["popularity"]:
        affordable = int(task.get("patience", 600) / (found["seconds"] / len(first)))
        if min(most, affordable) > task["epochs"]:
            found = train(task, min(most, affordable))
    return {**found, "first": first}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(ANSWER + json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
