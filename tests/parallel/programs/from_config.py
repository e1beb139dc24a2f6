"""The example GPT and ViT, trained from a config whose `train.dist` cuts them into stages."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from examples.language_model.gpt import GPT
from examples.language_model.shakespeare import ValidationLoss
from examples.vision.vit import VisionTransformer
from tests.engine import parts
from tests.parallel.programs.scenarios import Program, Report
from treadle.config import LazyCall
from treadle.engine import DefaultTrainer, EagerTrainer
from treadle.errors import TreadleError
from treadle.optim.param_groups import get_default_optimizer_params

VOCABULARY, CONTEXT, GLOBAL_BATCH = 12, 6, 8


class Sentences(Dataset[dict[str, Tensor]]):
    """Sequences of tokens, and the same one token later; some of them end early, if asked."""

    def __init__(self, count: int, seed: int, *, masked: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(VOCABULARY, (count, CONTEXT + 1), generator=generator)
        self.lengths = torch.randint(1, CONTEXT + 1, (count,), generator=generator)
        self.masked = masked

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.tokens[index]
        batch = {"tokens": row[:-1], "targets": row[1:]}
        return batch | ({"mask": torch.arange(CONTEXT) < self.lengths[index]} if self.masked else {})


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images of one channel and one of three classes each, as tuples."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.randn(count, 1, 4, 4, generator=generator)
        self.labels = torch.randint(3, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]


class Masking(nn.Module):
    """A layer for each place; what the mask hides is left as it is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask.unsqueeze(-1), hidden + torch.tanh(self.layer(hidden)), hidden)


class PerToken(nn.Module):
    """The mean cross-entropy of the tokens that the mask shows, and over how many of them it is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, VOCABULARY)

    def forward(self, hidden: Tensor, targets: Tensor, mask: Tensor) -> dict[str, Tensor]:
        scores, tokens = self.layer(hidden), mask.sum()
        each = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")
        hits = (scores.argmax(dim=-1) == targets) & mask
        return {
            "token_loss": (each * mask.flatten()).sum() / tokens,
            "accuracy": hits.sum() / tokens,
            "num_items_in_batch": tokens,
        }


class Reader(nn.Module):
    """A model whose layers all take the mask of the batch, and whose loss is a mean over tokens."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Masking(width) for _ in range(3))
        self.end = PerToken(width)

    def forward(self, tokens: Tensor, targets: Tensor, mask: Tensor) -> dict[str, Tensor]:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        outputs: dict[str, Tensor] = self.end(hidden, targets, mask)
        return outputs

    def pipeline_blocks(self) -> list[nn.Module]:
        return [self.embedding, *self.layers, self.end]


class Run:
    """One way to share a run out, as a config says it.

    Args:
        name: What it is called.
        dist: Its `train.dist`.
        shares: How many processes share the data.
        folder: Where its runs go.
    """

    def __init__(self, name: str, dist: dict[str, Any], shares: int, folder: Path) -> None:
        self.sharing = {**SHARING.get(name, {})}
        self.dist = {**dist, **self.sharing.pop("dist", {})}
        self.shares = 1 if "tensor_parallel_size" in self.dist else shares
        self.folder = folder / "config" / name.replace(" ", "_")

    def config(self, name: str, *, accumulation: int = 1, dist: dict[str, Any] | None = None, **train: Any) -> Any:
        """Return a config that trains the example GPT for five iterations; `train` wins."""
        evaluation = {"enabled": True, "eval_period": 4, "eval_metric": "val_loss", "eval_mode": "min"}
        settings = {
            "train_iter": 5,
            "train_micro_batch_size": GLOBAL_BATCH // accumulation // self.shares,
            "global_batch_size": GLOBAL_BATCH,
            "test_micro_batch_size": 3,
            "evaluation": evaluation | {"evaluator": LazyCall(ValidationLoss)()},
            "dist": {"device_type": "cpu", **self.dist, **(dist or {})},
        }
        made = parts.make_config(self.folder / name, **settings | self.sharing | train)
        made.model = LazyCall(GPT)(vocabulary_size=VOCABULARY, context=CONTEXT, layers=2, heads=2, width=16)
        groups = LazyCall(get_default_optimizer_params)(clip_grad_max_norm=0.5, clip_grad_norm_type=2.0)
        made.optim = LazyCall(torch.optim.AdamW)(params=groups, lr=1e-2)
        made.dataloader = {
            "train": LazyCall(Sentences)(count=28, seed=1),
            "test": [LazyCall(Sentences)(count=13, seed=2)],
        }
        return made

    def staged(self, **dist: Any) -> dict[str, Any]:
        """Return settings of stages, where there are any."""
        return dist if self.dist else {}


def trained(config: Any) -> DefaultTrainer:
    trainer = DefaultTrainer(config)
    trainer.train()
    return trainer


def report(trainer: DefaultTrainer) -> Report:
    """Return what a run reported, number by number, and what its checkpoint holds."""
    storage = trainer.storage
    names = [name for name in storage.names() if name in ("total_loss", "grad_norm", "token_loss", "accuracy")]
    history = {name: [float(value) for value, _ in storage.history(name).values()] for name in names}
    weights = trainer.checkpointer._read(trainer.checkpointer.get_checkpoint_file())[1]
    return {
        "losses": history.pop("total_loss"),
        "history": history,
        "results": trainer._last_eval_results,
        "samples": storage.samples,
        "weights": torch.cat([weights[name].reshape(-1) for name in sorted(weights)]),
    }


Feature = Callable[[Run], Report]


def twenty_steps(run: Run) -> Report:
    return report(trained(run.config("twenty", train_iter=20, evaluation={"enabled": False})))


def accumulation(run: Run) -> Report:
    return report(trained(run.config("accumulated", accumulation=2)))


def bf16(run: Run) -> Report:
    return report(trained(run.config("bf16", amp={"enabled": True})))


def evaluation(run: Run) -> Report:
    """Train a Vision Transformer, which returns scores in evaluation, from batches that are tuples."""
    stages = run.staged(pipeline_num_layers=3, custom_pipeline_stage_id=[0, 1, 1])
    config = run.config("evaluated", dist=stages, evaluation={"enabled": True, "eval_period": 2})
    config.train.activation_checkpoint = {"enabled": True, "modules": ["Block"]}
    config.model = LazyCall(VisionTransformer)(image_size=4, patch_size=2, classes=3, layers=3, heads=2, width=8)
    config.dataloader = {"train": LazyCall(Images)(count=28, seed=1), "test": [LazyCall(Images)(count=13, seed=2)]}
    return report(trained(config))


def per_token(run: Run) -> Report:
    config = run.config("per_token", accumulation=2, evaluation={"enabled": False})
    config.model = LazyCall(Reader)()
    config.dataloader = {"train": LazyCall(Sentences)(count=28, seed=1, masked=True)}
    return report(trained(config))


def save_and_resume(run: Run) -> Report:
    # A constant rate: a shorter run has the same one.
    settings = {"scheduler": None, "checkpointer": {"period": 3}}
    whole = report(trained(run.config("whole", train_iter=7, **settings)))
    trained(run.config("parted", train_iter=4, **settings))
    torch.manual_seed(99)
    again = report(trained(run.config("parted", train_iter=7, resume=True, **settings)))
    return whole | {"again": again["weights"], "again_losses": again["losses"]}


def train_again(run: Run) -> Report:
    """Train through, and in two calls of one trainer, the second of which goes on from what is in memory."""
    settings = {"scheduler": None, "evaluation": {"enabled": False}}
    whole = report(trained(run.config("at_once", **settings)))
    trainer = trained(run.config("in_two", train_iter=2, **settings))
    trainer.max_iter = 5
    trainer.train()
    again = report(trainer)
    return whole | {"again": again["weights"], "again_losses": again["losses"]}


FEATURES: dict[str, Feature] = {
    "20 steps": twenty_steps,
    "accumulation": accumulation,
    "bf16": bf16,
    "evaluation": evaluation,
    "a loss per token, accumulated": per_token,
    "save and resume": save_and_resume,
    "train() again": train_again,
}
WAYS: dict[int, dict[str, tuple[str, ...]]] = {
    1: {"one process": tuple(FEATURES)},
    2: {"pipeline": tuple(FEATURES)},
    4: {
        "DDP + pipeline": ("20 steps", "a loss per token, accumulated", "save and resume"),
        "tensor + pipeline": ("save and resume",),
        "FSDP2 + pipeline": ("accumulation", "save and resume"),
    },
}
SHARING: dict[str, dict[str, Any]] = {
    "tensor + pipeline": {"dist": {"tensor_parallel_size": 2}},
    "FSDP2 + pipeline": {"zero_optimization": {"enabled": True, "stage": 3}},
}
"""What a config says besides of how processes share a run."""


class OwnStep(EagerTrainer):
    def run_step(self, get_batch: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


def refusals(run: Run) -> Report:
    """Return the messages by which runs are refused that only real stages refuse."""
    found: dict[str, str] = {}

    def note(name: str, attempt: Callable[[], Any]) -> None:
        try:
            attempt()
        except TreadleError as error:
            found[name] = str(error)

    trainer = DefaultTrainer(run.config("own_step"))
    trainer._trainer = OwnStep(trainer.model, trainer.train_loader, trainer.optimizer)
    note("own step", trainer.train)
    return found


def add_configs(program: Program, world: int) -> None:
    """Add a scenario for each way of so many processes and each feature."""
    stages = {"pipeline_parallel_size": 2} if world > 1 else {}
    # The folder of a program is known when it runs.
    make = partial(_run, program, stages, world // 2 or 1)
    for name, titles in WAYS[world].items():
        for title in titles:
            program.add(f"config {name}: {title}", partial(make, name, FEATURES[title]))
    if world == 2:
        program.add("config refusals", partial(make, "refusals", refusals))


def _run(program: Program, dist: dict[str, Any], shares: int, name: str, feature: Feature) -> Report:
    return feature(Run(name, dist, shares, program.folder / os.environ.get("WORLD_SIZE", "1")))
