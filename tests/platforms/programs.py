"""What is run on systems that are only pretended; each function is a program, chosen by the first argument."""

import hashlib
import importlib
import json
import pkgutil
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import treadle


def imports() -> None:
    """Import every module; print how many there are, and which cannot be imported."""
    failed, count = {}, 0
    for found in pkgutil.walk_packages(treadle.__path__, "treadle."):
        if found.name.endswith("__main__"):
            continue
        count += 1
        try:
            importlib.import_module(found.name)
        except Exception as error:
            failed[found.name] = f"{type(error).__name__}: {error}"
    print(json.dumps({"modules": count, "failed": failed}))


def trainer(folder: str, **options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    return treadle.Trainer(
        model, nn.MSELoss(), torch.optim.AdamW(model.parameters()), seed=0, run_dir=folder, **options
    )


def data() -> TensorDataset:
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def train(folder: str, steps: str) -> None:
    """Train up to a step, or go on; print how it ended, where it began, and what the weights are."""
    began: list[int] = []

    class Begin(treadle.TrainerCallback):
        def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
            began.append(trainer.progress.step)

    one = trainer(folder, callbacks=(Begin,))
    result = one.train(
        data(), max_steps=int(steps), per_device_batch_size=8, eval_dataset=data(), resume="auto", save_every=3
    )
    weights = b"".join(weight.detach().numpy().tobytes() for weight in one.model.state_dict().values())
    digest = hashlib.sha256(weights).hexdigest()
    print(json.dumps({"steps": result.steps, "began": began[0], "weights": digest}))


def second(folder: str) -> None:
    """Train, and meanwhile look at the folder and start a second run in it; print what comes of that."""
    from treadle.runs import lock, status

    lock.PATIENCE = 0.0
    seen: dict[str, Any] = {}

    def start() -> None:
        try:
            trainer(folder).train(data(), num_epochs=1)
        except Exception as error:
            seen["refused"] = str(error)

    class Look(treadle.TrainerCallback):
        def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
            seen["locked"] = status.is_locked(Path(folder))
            other = threading.Thread(target=start)
            other.start()
            other.join()

    trainer(folder, callbacks=(Look,)).train(data(), num_epochs=1)
    found = status.read_status(Path(folder))
    print(json.dumps({**seen, "after": status.is_locked(Path(folder)), "state": found and found.state}))


def processes() -> None:
    """Ask who a process is, and start two; print what comes of that."""
    import os

    from treadle.files.process_identity import process_start

    try:
        treadle.notebook_launcher(print, ("never",), num_processes=2)
        said = "started"
    except treadle.errors.ConfigError as error:
        said = str(error)
    print(json.dumps({"own": process_start(os.getpid()), "none": process_start(2**22 + 1), "notebook": said}))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
