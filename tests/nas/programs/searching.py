"""Searches on several processes: run by torchrun, each rank writes what it ended in.

Run as `torchrun --nproc-per-node=2 -m tests.nas.programs.searching FOLDER`, or alone with half the batches.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from tests.execution.quick_compiler import quick_compiler
from tests.nas.small import make, small
from treadle import nas
from treadle.callback import TrainerCallback

WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "darts": (nas.DartsTrainer, {}),
    "unrolled": (nas.DartsTrainer, {"unrolled": True}),
    "gumbel": (nas.GumbelDartsTrainer, {}),
    "hard": (nas.GumbelDartsTrainer, {"hard": True}),
    "proxyless": (nas.ProxylessTrainer, {}),
    "enas": (nas.EnasTrainer, {}),
    "spos": (nas.SposTrainer, {}),
    "bf16": (nas.DartsTrainer, {"precision": "bf16"}),
    "compiled": (nas.DartsTrainer, {"precision": "bf16", "execution": "compile"}),
}
GLOBAL_BATCH = 8


class Plain(torch.nn.Module):
    """A space whose losses are means over samples: nothing in it looks at the batch as a whole."""

    def __init__(self) -> None:
        super().__init__()
        deep = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        self.layer = nas.LayerChoice(
            {"deep": deep, "flat": torch.nn.Linear(4, 4), "none": torch.nn.Identity()}, label="layer"
        )
        self.skip = nas.InputChoice(2, 1, label="skip")
        self.head = torch.nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        output: torch.Tensor = self.head(self.skip(self.layer(inputs), inputs))
        return output


class EqualAfterEachStep(TrainerCallback):
    """Compares what all ranks know of the architecture after each step."""

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        """Fail where a rank differs."""
        architecture = trainer.model.architecture
        if architecture is None or not dist.is_initialized():
            return
        own = torch.cat([value.detach().reshape(-1).float() for value in architecture.state_dict().values()])
        other = own.clone()
        dist.broadcast(other, src=0)
        assert torch.equal(own, other), f"rank {trainer.processes.rank} differs at step {trainer.progress.step}"


class RewardsOfOneModel(TrainerCallback):
    """Compares the statistics of batch norms on all ranks after each step of the controller."""

    def __init__(self) -> None:
        self.compared = 0

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        """Fail where a rank has others."""
        if trainer.this_run.updater.phase.name == "weights" or not dist.is_initialized():
            return
        self.compared += 1
        for name, own in trainer.model.named_buffers():
            first = own.clone()
            dist.broadcast(first, src=0)
            assert torch.equal(own, first), f"{name} of rank {trainer.processes.rank} differs"


def search_with_batch_norm(size: int) -> int:
    """Search by ENAS in a space with batch norm, whose rewards must be of one model; say how often it was looked."""
    callback = RewardsOfOneModel()
    make(nas.EnasTrainer, small(), batch_size=GLOBAL_BATCH // size, callbacks=(callback,)).fit()
    return callback.compared


def main() -> None:
    """Run every search, and write the supernet that each rank ended with."""
    folder = Path(sys.argv[1])
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    (folder / f"compared.{size}.{rank}.txt").write_text(str(search_with_batch_norm(size)))
    for name, (kind, options) in WAYS.items():
        model = small(Plain, seed=rank)
        trainer = make(kind, model, batch_size=GLOBAL_BATCH // size, callbacks=(EqualAfterEachStep,), **options)
        with quick_compiler():
            trainer.fit()
        state = {key: value.clone().contiguous() for key, value in trainer.supernet.state_dict().items()}
        save_file(state, folder / f"{name}.{size}.{rank}.safetensors")
        (folder / f"{name}.{size}.{rank}.txt").write_text(nas.key_of(trainer.export()))


if __name__ == "__main__":
    main()
