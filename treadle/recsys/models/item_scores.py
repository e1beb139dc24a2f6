"""Scores of a model for all items, however it can give them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from treadle.data import RandomState
from treadle.errors import ConfigError
from treadle.ops.eval_mode import keep_modes
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.abstract_recommender import AbstractRecommender

# Looking at a model while it may be in training


@contextmanager
def looking(model: Any) -> Iterator[None]:
    """Put a model into evaluation mode; leave the modes of modules, and random generators, as they were."""
    trained = any(module.training for module in model.modules())
    with RandomState().kept(), torch.no_grad(), keep_modes(model):
        model.eval()
        try:
            yield
        finally:
            if trained:
                # By the method, which a model may have made its own; then each module as it was.
                model.train()


PAIRS_AT_ONCE = {"cpu": 2**17, "cuda": 2**20}
"""How many pairs of a row and an item are scored at a time, where a model cannot score all items at once."""


class ModelScores:
    """Scores of a model for whatever an evaluation asks: all items, or pairs.

    Args:
        model: The model.
        dataset: Whose items are scored.
        device: Where the model is.

    Raises:
        ConfigError: The model defines no scores.
    """

    def __init__(self, model: Any, dataset: Dataset, device: torch.device) -> None:
        base = AbstractRecommender
        if type(model).predict is base.predict and type(model).full_sort_predict is base.full_sort_predict:
            raise ConfigError(f"{type(model).__name__} cannot be evaluated: define predict, or full_sort_predict")
        self.model, self._device = model, device
        self._dataset = dataset
        self._items: Interaction | None = None
        self.scores_all = True

    def all_items(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items for each row, `[rows, items]`."""
        if self.scores_all:
            try:
                scores: Tensor = self.model.full_sort_predict(interaction)
                return scores.view(len(interaction), -1)
            except NotImplementedError:
                self.scores_all = False
        return self._by_pairs(interaction)

    def _by_pairs(self, interaction: Interaction) -> Tensor:
        if self._items is None:
            self._items = self._dataset.get_item_feature().to(self._device)
        number = len(self._items)
        step = max(1, PAIRS_AT_ONCE.get(self._device.type, 2**17) // number)
        parts = [self._pairs(interaction[start : start + step]) for start in range(0, len(interaction), step)]
        return torch.cat(parts)

    def _pairs(self, some: Interaction) -> Tensor:
        assert self._items is not None
        pairs = some.repeat_interleave(len(self._items))
        pairs.update(self._items.repeat(len(some)))
        scores: Tensor = self.model.predict(pairs)
        return scores.view(len(some), len(self._items))
