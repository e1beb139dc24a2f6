"""Sparse linear method."""

import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.bases.fitted import FittedRecommender, common_users, similarity_scores
from treadle.recsys.models.settings import number, whole

BLOCK = 64
"""How many items are solved for between two products of whole matrices."""
CELLS = 1 << 24
"""How many numbers the small problems have that are solved together."""


class SLIM(FittedRecommender):
    """A linear model of a user's items by each other, with few weights, found by an elastic net for each item.

    Ning and Karypis, "SLIM: sparse linear methods for top-N recommender systems", 2011. `alpha` and `l1_ratio` are
    those of scikit-learn's ElasticNet, as in RecBole's SLIMElastic: with n users, what is minimised for each item y is
    `|y - X w|^2 / (2 n) + alpha * l1_ratio * |w|_1 + alpha * (1 - l1_ratio) / 2 * |w|_2^2`.

    All items are solved for together, by coordinate descent on the matrix of common users: rounds over all weights,
    and between them, until nothing changes, rounds over those that are not 0.

    Attributes:
        item_similarity: The weights, `[n_items, n_items]`; the column of an item says how others add to its score.
    """

    item_similarity: Tensor

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        alpha, self.l1_ratio = number(config, "alpha"), number(config, "l1_ratio")
        if self.l1_ratio > 1:
            raise ConfigError(f"l1_ratio={self.l1_ratio:g} is a share, between 0 and 1")
        self.l1, self.l2 = alpha * self.l1_ratio, alpha * (1 - self.l1_ratio)
        self.positive_only, self.hide_item = bool(config["positive_only"]), bool(config["hide_item"])
        self.max_sweeps, self.tolerance = whole(config, "max_sweeps"), number(config, "tolerance")
        self.keep("item_similarity")

    def fit(self, dataset: Dataset) -> None:
        """Solve for the weights."""
        common = common_users(self.refresh_histories(dataset)).to_dense()
        users = int((self.histories.counts > 0).sum())
        matrix = common.to(self.histories.items.device) / max(users, 1)
        weights = torch.zeros_like(matrix)
        for _ in range(self.max_sweeps):
            change = self._sweep(matrix, weights)
            aim = self.tolerance * weights.abs().max()
            if bool(change <= aim):
                break
            # No closer than the other weights are, which the next round changes.
            self._settle(matrix, weights, torch.maximum(0.1 * change, aim))
        self.item_similarity = weights

    def _sweep(self, matrix: Tensor, weights: Tensor) -> Tensor:
        """Solve for each row of weights once, the others kept as they are; return the largest change."""
        largest = weights.new_zeros(())
        for first in range(0, len(matrix), BLOCK):
            block = slice(first, first + BLOCK)
            own = matrix[block, block]
            rest = matrix[block] - torch.mm(matrix[block], weights)
            before = weights[block].clone()
            for place in range(len(own)):
                old = weights[first + place].clone()
                new = self._shrunk(rest[place] + own[place, place] * old, own[place, place])
                if self.hide_item:
                    new[first + place] = 0
                weights[first + place] = new
                rest -= torch.outer(own[:, place], new - old)
            largest = torch.maximum(largest, (weights[block] - before).abs().max())
        return largest

    def _settle(self, matrix: Tensor, weights: Tensor, aim: Tensor) -> None:
        """Solve for the weights that are not 0, which are few, until they change by `aim`; leave the others at 0.

        Columns are solved for together, each as a problem of its own with as many unknowns as it has weights.
        """
        counts = weights.count_nonzero(dim=0)
        order = counts.sort(descending=True).indices
        sizes: list[int] = counts[order].tolist()
        first = 0
        while first < len(sizes) and sizes[first]:
            size = sizes[first]
            columns = order[first : first + max(1, CELLS // size**2)]
            self._settle_columns(matrix, weights, columns, size, aim)
            first += len(columns)

    def _settle_columns(self, matrix: Tensor, weights: Tensor, columns: Tensor, size: int, aim: Tensor) -> None:
        # The columns stand side by side, `[size, columns]`, so that a step reads what lies together.
        rows = weights[:, columns].abs().topk(size, dim=0).indices
        found = weights[rows, columns]
        # What a column has fewer of is filled up with rows of weight 0, which stay so.
        there = (found != 0).to(found.dtype)
        own = matrix[rows.unsqueeze(1), rows]
        rest = matrix[rows, columns] - (own * found).sum(dim=1)
        for _ in range(self.max_sweeps):
            before = found.clone()
            for place in range(size):
                old, diagonal = found[place].clone(), own[place, place]
                new = self._shrunk(rest[place] + diagonal * old, diagonal) * there[place]
                found[place] = new
                rest.addcmul_(own[place], old - new)
            if bool((found - before).abs().max() <= aim):
                break
        weights[rows, columns] = found

    def _shrunk(self, correlation: Tensor, own: Tensor) -> Tensor:
        """Return the weights of one item for all others, by the correlation that is left to it."""
        size = (correlation.abs() - self.l1).clamp(min=0) / (own + self.l2).clamp(min=1e-12)
        return torch.where(correlation > 0, size, 0.0 if self.positive_only else -size)

    def scores(self, users: Tensor) -> Tensor:
        """Return the sums of weights."""
        return similarity_scores(self.histories, users, self.result("item_similarity"))

    def item_similarities(self, items: Tensor) -> Tensor:
        """Return what each of some items adds to the score of every item, `[items, n_items]`."""
        return self.result("item_similarity")[items]
