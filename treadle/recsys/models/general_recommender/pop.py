"""What is popular."""

import torch
from torch import Tensor

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.bases.fitted import FittedRecommender


class Pop(FittedRecommender):
    """Recommends to everybody what was used most, the baseline of all others.

    Cremonesi, Koren and Turrin, "Performance of recommender algorithms on top-N recommendation tasks", 2010, call it
    TopPop. Every interaction of the data for training counts, and nothing else.

    Attributes:
        item_count: How often each item was used.
    """

    no_vectors = "it only counts how often each item is used"
    item_count: Tensor

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.keep("item_count")

    def fit(self, dataset: Dataset) -> None:
        """Count."""
        _, items = dataset.user_item_pairs()
        counts = torch.bincount(items, minlength=self.n_items)
        counts[0] = 0
        self.item_count = counts.to(self.histories.items.device)

    def scores(self, users: Tensor) -> Tensor:
        """Return the count of each item, divided by the highest."""
        counts = self.result("item_count")
        return (counts / counts.max().clamp(min=1)).expand(users.shape[0], -1)
