"""Embarrassingly shallow autoencoder."""

import torch
from torch import Tensor

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.bases.fitted import FittedRecommender, common_users, similarity_scores
from treadle.recsys.models.settings import number

DOUBLE = 20_000
"""Up to so many items the inverse is calculated in float64, which takes three times 3 GB."""


class EASE(FittedRecommender):
    """A linear model of a user's items by each other, none by itself, in closed form.

    Steck, "Embarrassingly shallow autoencoders for sparse data", 2019. With P, the inverse of the matrix of common
    users with `reg_weight` added to its diagonal, the weights are `-P / diagonal of P`, and zero on the diagonal.

    Attributes:
        item_similarity: The weights, `[n_items, n_items]`.
    """

    item_similarity: Tensor

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.reg_weight = number(config, "reg_weight", 1e-6)
        self.keep("item_similarity")

    def fit(self, dataset: Dataset) -> None:
        """Solve for the weights."""
        common = common_users(self.refresh_histories(dataset)).to_dense()
        matrix = common.to(self.histories.items.device)
        matrix = matrix.double() if self.n_items <= DOUBLE else matrix
        matrix.diagonal().add_(self.reg_weight)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
        weights = inverse / -inverse.diagonal()
        weights.fill_diagonal_(0.0)
        self.item_similarity = weights.float()

    def scores(self, users: Tensor) -> Tensor:
        """Return the sums of weights."""
        return similarity_scores(self.histories, users, self.result("item_similarity"))

    def item_similarities(self, items: Tensor) -> Tensor:
        """Return what each of some items adds to the score of every item, `[items, n_items]`."""
        return self.result("item_similarity")[items]
