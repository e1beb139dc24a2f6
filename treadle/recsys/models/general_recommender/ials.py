"""Implicit alternating least squares."""

import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.bases.fitted import FittedRecommender
from treadle.recsys.models.graph import Rows
from treadle.recsys.models.histories import unique_pairs
from treadle.recsys.models.least_squares import LeastSquares
from treadle.recsys.models.settings import choice, number, whole


class IALS(FittedRecommender):
    """A matrix factorisation of all pairs, used or not, whose sides are solved for in turns.

    Hu, Koren and Volinsky, "Collaborative filtering for implicit feedback datasets", 2008, in the form of Rendle,
    Krichene, Zhang and Koren, "Revisiting the performance of iALS on item recommendation benchmarks", 2021. With the
    pairs S, what is minimised is the sum of `(1 - w h)^2` over S, of `unobserved_weight * (w h)^2` over all pairs, and
    of `reg_weight * (n + unobserved_weight * m)^reg_exponent * |w|^2` over users, who have n items of m; likewise over
    items.

    Attributes:
        user_factors, item_factors: The factors, `[users or items, embedding_size]`.
    """

    user_factors: Tensor
    item_factors: Tensor

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.embedding_size, self.iterations = whole(config, "embedding_size"), whole(config, "iterations")
        self.unobserved_weight = number(config, "unobserved_weight")
        self.reg_weight, self.reg_exponent = number(config, "reg_weight"), number(config, "reg_exponent")
        self.init_std = number(config, "init_std")
        exact = choice(config, "solver", ("cg", "cholesky")) == "cholesky"
        steps = whole(config, "cg_steps")
        self.steps = None if exact else steps
        self.seed = fold_seed(int(config["seed"]), "factors of items")
        self.keep("user_factors", "item_factors")

    @torch.no_grad()
    def fit(self, dataset: Dataset) -> None:
        """Solve for users and items in turns."""
        device = self.refresh_histories(dataset).items.device
        users, items, _ = unique_pairs(dataset)
        by_user = self._problem(Rows(users, items, self.n_users).to(device), self.n_items)
        by_item = self._problem(Rows(items, users, self.n_items).to(device), self.n_users)
        generator = torch.Generator().manual_seed(self.seed)
        scale = self.init_std / self.embedding_size**0.5
        of_items = (torch.randn(self.n_items, self.embedding_size, generator=generator) * scale).to(device)
        of_items[0] = 0
        of_users = of_items.new_zeros(self.n_users, self.embedding_size)
        for _ in range(self.iterations):
            of_users = by_user.solve(of_items, of_users, self.steps)
            of_items = by_item.solve(of_users, of_items, self.steps)
        self.user_factors, self.item_factors = of_users, of_items

    def _problem(self, rows: Rows, n_columns: int) -> LeastSquares:
        """Return the problem of one side; the id 0 is that of nobody and nothing."""
        counts = rows.starts.diff().float() + self.unobserved_weight * (n_columns - 1)
        return LeastSquares(rows, self.reg_weight * counts**self.reg_exponent, self.unobserved_weight)

    def scores(self, users: Tensor) -> Tensor:
        """Return the inner products of factors."""
        return self.user_vectors()[users] @ self.item_vectors().T

    def user_vectors(self) -> Tensor:
        """Return the factors of each user id."""
        return self.result("user_factors")

    def item_vectors(self) -> Tensor:
        """Return the factors of each item id."""
        return self.result("item_factors")
