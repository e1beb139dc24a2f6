"""Trainers that are killed and resumed, one module each; a peer is imported only when it is asked for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.resume.work import Scenario, Weights

Run = Callable[[Scenario, Path, bool], Weights]
"""Trains a scenario to its end in a folder, from its start or from what is saved there."""


@dataclass(frozen=True)
class Contender:
    """One column of the table: `run` of `benchmarks.resume.<module>`, which needs `packages`.

    Attributes:
        name: What the column is called.
        module: Where its program is.
        packages: Distributions that it needs.
        how: How it is resumed, in the words of its documentation.
        options: Further arguments of its program.
    """

    name: str
    module: str
    packages: tuple[str, ...]
    how: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def load(self) -> Run:
        """Import the contender's program.

        Raises:
            ImportError: A package is not installed, or does not import.
        """
        return partial(import_module(f"benchmarks.resume.{self.module}").run, **self.options)


CONTENDERS = (
    Contender("Treadle", "with_treadle", ("treadle",), '`train(..., resume="auto")`'),
    Contender(
        "Lightning",
        "with_lightning",
        ("lightning",),
        '`fit(..., ckpt_path="last")` after `seed_everything(seed, workers=True)`, a plain `DataLoader`',
    ),
    Contender(
        "Lightning, stateful loader",
        "with_lightning",
        ("lightning", "torchdata"),
        "the same with torchdata's `StatefulDataLoader`",
        {"stateful": True},
    ),
    Contender(
        "transformers Trainer",
        "with_transformers",
        ("transformers",),
        "`train(resume_from_checkpoint=True)`",
    ),
    Contender(
        "accelerate",
        "with_accelerate",
        ("accelerate",),
        "`load_state`, then `skip_first_batches` in the first epoch, as in its guide",
    ),
    Contender(
        "accelerate, seedable",
        "with_accelerate",
        ("accelerate",),
        "the same with `use_seedable_sampler=True` and `set_epoch` in each epoch",
        {"loader": "seedable"},
    ),
    Contender(
        "accelerate, stateful",
        "with_accelerate",
        ("accelerate", "torchdata"),
        "`load_state` with `use_stateful_dataloader=True`, which skips by itself",
        {"loader": "stateful"},
    ),
    Contender(
        "pytorch-accelerated",
        "with_pytorch_accelerated",
        ("pytorch-accelerated",),
        "`SaveTrainingStateCallback`, then `train(..., resume_from=folder)`",
    ),
    Contender(
        "Ignite",
        "with_ignite",
        ("pytorch-ignite",),
        "`Checkpoint.load_objects` of trainer, model, optimizer and schedule, then `run`",
    ),
    Contender(
        "Ignite, deterministic",
        "with_ignite",
        ("pytorch-ignite",),
        "the same with a `DeterministicEngine`",
        {"deterministic": True},
    ),
)
