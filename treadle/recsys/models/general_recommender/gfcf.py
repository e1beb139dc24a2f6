"""Graph filter based collaborative filtering."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from treadle.data.seeds import fold_seed
from treadle.recsys.models.eigenvectors import leading_eigenvectors
from treadle.recsys.models.fitted_recommender import FittedRecommender
from treadle.recsys.models.graph import Graph
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
        self.graph = Graph.of(dataset)
        self.keep("vectors")

    def _smoothed(self, features: Tensor) -> Tensor:
        """Return `R'R` times features of items, `[n_items, n]`."""
        nodes = torch.cat([features.new_zeros(self.n_users, features.shape[1]), features])
        return self.graph.split(self.graph(self.graph(nodes)))[1]

    @torch.no_grad()
    def fit(self, dataset: "Dataset") -> None:
        """Find the singular vectors."""
        device = self.refresh_histories(dataset).items.device
        self.graph = Graph.of(dataset).to(device)
        used = int((self.graph.split(self.graph.degrees)[1] > 0).sum())
        rank = min(self.rank, used)
        seed = fold_seed(self.seed, "singular vectors")
        _, self.vectors = leading_eigenvectors(self._smoothed, self.n_items, rank, seed=seed, device=device)

    def scores(self, users: Tensor) -> Tensor:
        """Return the filtered histories."""
        return self._filtered(self.histories.rows(users, distinct=False))

    def _filtered(self, history: Tensor) -> Tensor:
        """Return what both filters make of how often each item was used, `[rows, n_items]`."""
        roots = self.graph.split(self.graph.degrees)[1].clamp(min=1).sqrt()
        vectors = self.result("vectors")
        low = ((history / roots) @ vectors) @ vectors.T * roots
        return self._smoothed(history.T).T + self.alpha * low

    def item_similarities(self, items: Tensor) -> Tensor:
        """Return the scores for somebody who has used only one of some items, `[items, n_items]`."""
        return self._filtered(functional.one_hot(items, self.n_items).to(self.vectors.dtype))
