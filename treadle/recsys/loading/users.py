"""Batches of users, for models that take a user's whole history at once."""

from typing import Any

import torch
from torch import Tensor

from treadle.recsys.config import Config
from treadle.recsys.dataset import Dataset
from treadle.recsys.interaction import Interaction
from treadle.recsys.loading.base import AbstractDataLoader


class UserDataLoader(AbstractDataLoader):
    """Batches of the users who have interactions to train on.

    Args:
        config: The settings.
        dataset: The data for training.
        sampler: Not used; autoencoders need no negatives.
        shuffle: Whether each epoch has an order of its own.
    """

    def __init__(self, config: Config, dataset: Dataset, sampler: Any = None, shuffle: bool = True) -> None:
        self._users = torch.unique(dataset.user_item_pairs()[0])
        super().__init__(config, dataset, sampler, shuffle)

    def _count_rows(self) -> int:
        return len(self._users)

    def _init_batch_size_and_step(self) -> None:
        self.set_batch_size(int(self.config["train_batch_size"]))

    def make_batch(self, rows: Tensor, places: Tensor, epoch: int) -> Interaction:
        """Return the users of these rows."""
        self._users = self._users.to(self.device)
        return Interaction.of_columns({str(self._dataset.uid_field): self._users[rows]}, len(rows))
