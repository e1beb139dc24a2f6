"""Graph filter based collaborative filtering."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from treadle.data.seeds import fold_seed
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.edges import Edges
from treadle.recsys.models.eigenvectors import leading_eigenvectors
from treadle.recsys.models.fitted_recommender import FittedRecommender
from treadle.recsys.models.graph import multiply
from treadle.recsys.models.histories import unique_pairs
from treadle.recsys.models.settings import number, whole

if TYPE_CHECKING:
    from treadle.recsys.config import Config
    from treadle.recsys.dataset import Dataset


class GFCF(FittedRecommender):
    """Filters a user's items over the graph: a linear filter, and an ideal low-pass filter, in closed form.

    Shen, Wu, Zhang, Shan, Zhang, Letaief and Li, "How powerful is graph convolution for recommendation?", 2021. With R,
    the matrix of users and items with each entry divided by the roots of both degrees, a user's row r becomes
    `r R'R + alpha * r D^-1/2 V V' D^1/2`: D are the degrees of items, V the `rank` first right singular vectors of R.

    Attributes:
        vectors: V, `[n_items, rank]`.
    """

    vectors: Tensor

    def __init__(self, config: "Config", dataset: "Dataset") -> None:
        super().__init__(config, dataset)
        self.alpha, self.rank = number(config, "alpha"), whole(config, "rank")
        self.seed = int(config["seed"])
        self.ratings = _Ratings(dataset)
        self.keep("vectors")

    @torch.no_grad()
    def fit(self, dataset: "Dataset") -> None:
        """Find the singular vectors."""
        device = self.refresh_histories(dataset).items.device
        self.ratings = _Ratings(dataset).to(device)
        rank = min(self.rank, self.ratings.n_used)
        seed = fold_seed(self.seed, "singular vectors")
        _, self.vectors = leading_eigenvectors(self.ratings, self.n_items, rank, seed=seed, device=device)

    def scores(self, users: Tensor) -> Tensor:
        """Return the filtered histories."""
        return self._filtered(self.histories.rows(users, distinct=False))

    def _filtered(self, history: Tensor) -> Tensor:
        """Return what both filters make of how often each item was used, `[rows, n_items]`."""
        roots, vectors = self.ratings.item_roots, self.result("vectors")
        low = ((history / roots) @ vectors) @ vectors.T * roots
        smooth: Tensor = self.ratings(history.T.contiguous()).T
        return smooth + self.alpha * low

    def item_similarities(self, items: Tensor) -> Tensor:
        """Return the scores for somebody who has used only one of some items, `[items, n_items]`."""
        return self._filtered(functional.one_hot(items, self.n_items).to(self.vectors.dtype))


class _Ratings(Constants):
    """Who used what, each entry divided by the roots of both degrees: R.

    Attributes:
        n_used: How many items somebody used.
        weights: The entries, by user.
        weights_by_item: The entries, by item.
        item_roots: The root of how many users each item has, 1 for items of nobody.
    """

    weights: Tensor
    weights_by_item: Tensor
    item_roots: Tensor

    def __init__(self, dataset: "Dataset") -> None:
        users, items, _ = unique_pairs(dataset)
        user_roots, item_roots = (
            torch.bincount(ids, minlength=count).clamp(min=1).sqrt()
            for ids, count in ((users, dataset.user_num), (items, dataset.item_num))
        )
        weights = 1 / (user_roots[users] * item_roots[items])
        edges = Edges(users, items, dataset.user_num, dataset.item_num)
        super().__init__(weights=weights, weights_by_item=weights[edges.back.place], item_roots=item_roots)
        self.edges = edges
        self.n_used = int((edges.back.starts.diff() > 0).sum())

    def forward(self, features: Tensor) -> Tensor:
        """Return `R'R` times features of items, `[n_items, n]`."""
        return multiply(self.edges.back, multiply(self.edges.there, features, self.weights), self.weights_by_item)
