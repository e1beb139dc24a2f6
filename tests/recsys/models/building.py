"""A model under test, and what it was built on."""

from dataclasses import dataclass
from typing import Any

from treadle.recsys import Config, Interaction


@dataclass
class BuiltModel:
    """A model, its config and the loaders that it was built on."""

    config: Config
    train: Any
    valid: Any
    model: Any

    def batch(self, index: int = 0) -> Interaction:
        """Return a training batch."""
        batch: Interaction = self.train.batch_at(0, index)
        return batch
