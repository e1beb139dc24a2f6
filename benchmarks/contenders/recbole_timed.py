"""RecBole, timed: run by its own interpreter, told what to do in JSON, answers in one line of JSON.

`python recbole_timed.py '{"model": "BPR", "dataset": "ml-100k", "epochs": 5, "settings": {}}'`

With `"batches": 6` each epoch ends after six batches, and its seconds are scaled up to all of them.
"""

import itertools
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

ANSWER = "ANSWER "


def main() -> None:
    task = json.loads(sys.argv[1])
    del sys.argv[1:]  # its Config reads them
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    load = torch.load
    # Its checkpoints hold an object of its own, which torch refuses by default since 2.6.
    torch.load = lambda *args, **kwargs: load(*args, **{**kwargs, "weights_only": False})
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.utils import get_model, get_trainer, init_seed

    with tempfile.TemporaryDirectory() as folder:
        fixed = {"epochs": task["epochs"], "show_progress": False, "gpu_id": "", "checkpoint_dir": folder}
        config = Config(model=task["model"], dataset=task["dataset"], config_dict={**fixed, **task["settings"]})
        init_seed(config["seed"], config["reproducibility"])
        train_data, valid_data, _ = data_preparation(config, create_dataset(config))
        init_seed(config["seed"], config["reproducibility"])
        model = get_model(config["model"])(config, train_data._dataset).to(config["device"])
        trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
        times = {"train": timed(trainer, "_train_epoch"), "evaluate": timed(trainer, "_valid_epoch")}
        batches = min(task.get("batches") or len(train_data), len(train_data))
        whole = len(train_data) / batches
        _, result = trainer.fit(FirstBatches(train_data, batches), valid_data, verbose=False, saved=True)
        times["train"] = [seconds * whole for seconds in times["train"]]
    losses = [float(trainer.train_loss_dict[epoch]) for epoch in sorted(trainer.train_loss_dict)]
    print(ANSWER + json.dumps({"times": times, "losses": losses, "result": dict(result)}), flush=True)


class FirstBatches:
    """A loader that ends after some batches; all else is asked of the loader itself."""

    def __init__(self, loader: Any, batches: int) -> None:
        self._loader, self._batches = loader, batches

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._loader), self._batches)

    def __len__(self) -> int:
        return self._batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def timed(owner: object, name: str) -> list[float]:
    """Have a method note the CPU seconds of each of its calls; return the list that they go into."""
    seconds: list[float] = []
    method = getattr(owner, name)

    def call(*args: object, **kwargs: object) -> object:
        began = time.process_time()
        try:
            return method(*args, **kwargs)
        finally:
            seconds.append(time.process_time() - began)

    setattr(owner, name, call)
    return seconds


if __name__ == "__main__":
    main()
