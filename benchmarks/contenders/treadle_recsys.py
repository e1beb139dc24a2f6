"""Treadle's recommender door, timed: told what to do in JSON, answers in one line of JSON, as `recbole_timed` does.

`python -m benchmarks.contenders.treadle_recsys '{"model": "BPR", "dataset": "ml-100k", "epochs": 5, "settings": {}}'`
"""

import json
import sys
import tempfile
import time
from typing import Any

import torch

from benchmarks.contenders.recbole_timed import ANSWER, timed
from treadle.recsys import Config
from treadle.recsys.quick_start import build
from treadle.recsys.trainers.loop.core import RecsysCore


class TimedCore:
    """Notes the CPU seconds of every training epoch: drawing, updates and the loss that is read in the end."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __enter__(self) -> list[float]:
        self._plain: Any = RecsysCore._run_train_epoch
        plain, seconds = self._plain, self.seconds

        def run(core: RecsysCore, loader: Any) -> None:
            began = time.process_time()
            plain(core, loader)
            seconds.append(time.process_time() - began)

        RecsysCore._run_train_epoch = run  # type: ignore[method-assign]
        return seconds

    def __exit__(self, *exception: object) -> None:
        RecsysCore._run_train_epoch = self._plain  # type: ignore[method-assign]


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Train as a user would, and return the CPU seconds of each epoch and each evaluation."""
    with tempfile.TemporaryDirectory() as folder, TimedCore() as epochs:
        fixed = {"epochs": task["epochs"], "show_progress": False, "use_gpu": False, "checkpoint_dir": folder}
        config = Config(task["model"], task["dataset"], config_dict={**fixed, **task["settings"]})
        trainer, _, train_data, valid_data, _ = build(config)
        evaluations = timed(trainer, "_valid_epoch")
        _, result = trainer.fit(train_data, valid_data, verbose=False, saved=True)
    losses = [trainer.train_loss_dict[epoch] for epoch in sorted(trainer.train_loss_dict)]
    return {"times": {"train": epochs, "evaluate": evaluations}, "losses": losses, "result": dict(result)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(ANSWER + json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
