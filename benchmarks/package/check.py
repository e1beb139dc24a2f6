"""What an installed package must do; run by an environment that has nothing else, in an empty folder.

It imports nothing of the repository.
"""

import json
import sys
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import treadle

NAMED = ("torch", "numpy", "torchmetrics", "safetensors", "hydra-core", "omegaconf", "rich", "typer")


def train(folder: str, epochs: int) -> bytes:
    """Train up to an epoch, or go on; return the weights."""
    torch.manual_seed(0)
    inputs = torch.randn(256, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    trainer = treadle.Trainer(
        model, nn.MSELoss(), torch.optim.AdamW(model.parameters()), seed=0, run_dir=folder, precision="bf16"
    )
    result = trainer.train(data, num_epochs=epochs, per_device_batch_size=16, eval_dataset=data, resume="auto")
    assert result.epochs == epochs, result
    return b"".join(weight.detach().numpy().tobytes() for weight in model.state_dict().values())


def compiled() -> None:
    """Compile a step: what a new version of torch or of Python breaks first."""
    model = nn.Linear(4, 1)
    trainer = treadle.Trainer(
        model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=(), execution="compile"
    )
    trainer.train([(torch.ones(4), torch.zeros(1))] * 8, num_epochs=1, per_device_batch_size=4)


def main() -> None:
    """Print, as JSON, the versions that all of this worked with."""
    place = Path(treadle.__file__).resolve()
    assert place.is_relative_to(Path(sys.prefix).resolve()), f"{place} is not in {sys.prefix}"
    assert distribution("treadle").version == treadle.__version__
    train("whole", 3)
    train("parts", 2)
    assert train("parts", 3) == train("whole", 3), "a resumed run has other weights"
    outcome: dict[str, Any] = {"compile": "works"}
    try:
        compiled()
    except Exception as error:  # without a C++ compiler there is nothing to compile with
        outcome["compile"] = f"{type(error).__name__}: {error}"[:200]
    print(json.dumps({"python": sys.version.split()[0], **{name: version(name) for name in NAMED}, **outcome}))


if __name__ == "__main__":
    main()
