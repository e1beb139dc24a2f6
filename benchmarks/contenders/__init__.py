"""The loops and trainers that are measured, one module each; a peer is imported only when it is asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from benchmarks.job import Job

Train = Callable[[Job], None]


@dataclass(frozen=True)
class Contender:
    """One row of the table: `function` of `benchmarks.contenders.<module>`, which needs `package`."""

    name: str
    module: str
    function: str
    package: str

    def load(self) -> Train:
        """Import the contender's function.

        Raises:
            ImportError: `package` is not installed, or does not import.
        """
        train: Train = getattr(import_module(f"benchmarks.contenders.{self.module}"), self.function)
        return train


BASELINE = Contender("hand-written loop", "hand_written", "train", "torch")

CONTENDERS = (
    BASELINE,
    # The same code under a second name: how far its ratio strays from 1 is what this machine cannot resolve.
    Contender("hand-written loop, again", "hand_written", "train", "torch"),
    Contender("treadle, callbacks=()", "treadle_trainer", "train_without_callbacks", "treadle"),
    Contender("treadle, default", "treadle_trainer", "train_by_default", "treadle"),
    Contender("Ignite, supervised trainer", "ignite_engine", "train", "pytorch-ignite"),
    Contender("accelerate, loop by hand", "accelerate_loop", "train", "accelerate"),
    Contender("pytorch-accelerated, default", "pytorch_accelerated_trainer", "train", "pytorch-accelerated"),
    Contender("Lightning, barebones=True", "lightning_trainer", "train_barebones", "lightning"),
    Contender("Lightning, default", "lightning_trainer", "train_by_default", "lightning"),
    Contender("transformers Trainer, default", "transformers_trainer", "train", "transformers"),
)
