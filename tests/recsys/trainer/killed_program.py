"""A program that trains, and is killed after a number of updates; started again without one, it goes on."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.recsys.trainer.runs import make, state_of
from treadle.callback import TrainerCallback
from treadle.checkpoint import write_file

MODELS: dict[str, dict[str, Any]] = {
    "BPR": {},
    "MultiVAE": {"mlp_hidden_size": [16], "latent_dimension": 8, "train_batch_size": 8},
    "RecVAE": {"hidden_dimension": 16, "latent_dimension": 8, "train_batch_size": 8, "n_enc_epochs": 2},
    "EASE": {},
}


class Kill(TrainerCallback):
    """Kills the process, as nothing can prevent."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        if trainer.progress.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    folder, name, step = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    callbacks = (Kill(step),) if step else ()
    run = make(folder, name, *callbacks, run_dir=str(folder / "run"), save_every="1 step", **MODELS[name])
    run.fit()
    state = state_of(run.trainer)
    state["test"] = run.trainer.evaluate(run.test).exact
    write_file(folder / "end", state)


if __name__ == "__main__":
    main()
