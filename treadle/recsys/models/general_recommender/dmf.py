"""Deep matrix factorisation."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import GeneralRecommender
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.graph import Graph
from treadle.recsys.models.histories import Histories, unique_pairs
from treadle.recsys.models.init import small_normal_initialization
from treadle.recsys.models.layers.functional import all_dots, dot
from treadle.recsys.models.layers.mlp import MLPLayers
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import choice, sizes, whole

LEAST = 1e-6
"""The least probability, by the paper."""


class DMF(GeneralRecommender):
    """Two networks, one from a user's row of the rating matrix, one from an item's column; their cosine is the score.

    Xue, Dai, Zhang, Huang and Chen, "Deep matrix factorization models for recommender systems", 2017. The loss is the
    paper's normalised cross-entropy. With `similarity: dot` the score is the sigmoid of an inner product, as in
    RecBole.

    The first layer of both networks is linear in the row, and is calculated for all users and items at once, as one
    product with the sparse matrix.
    """

    input_type = InputType.POINTWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.LABEL = str(config["LABEL_FIELD"])
        self.RATING = str(config["RATING_FIELD"])
        self.inter_matrix_type = choice(config, "inter_matrix_type", ("01", "rating"))
        self.similarity = choice(config, "similarity", ("cosine", "dot"))
        user_size, item_size = whole(config, "user_embedding_size"), whole(config, "item_embedding_size")
        user_hidden, item_hidden = sizes(config, "user_hidden_size_list"), sizes(config, "item_hidden_size_list")
        if (user_hidden or [user_size])[-1] != (item_hidden or [item_size])[-1]:
            raise ConfigError(
                f"user_hidden_size_list={user_hidden} and item_hidden_size_list={item_hidden} must end with the same "
                "size, for users and items to be compared"
            )
        rated = self.RATING if self.inter_matrix_type == "rating" else None
        users, items, values = unique_pairs(dataset, rated)
        self.max_rating = float(values.max())
        self.graph = Graph(users, items, self.n_users, self.n_items, normalised=False)
        self.known = Constants(ratings=self.graph.edge_weights(values))
        # A weight for each item in the rows of users, and for each user in the columns of items.
        self.user_linear = nn.Embedding(self.n_items, user_size)
        self.item_linear = nn.Embedding(self.n_users, item_size)
        self.user_fc_layers = MLPLayers([user_size, *user_hidden])
        self.item_fc_layers = MLPLayers([item_size, *item_hidden])
        self.apply(small_normal_initialization)

    def towers(self) -> tuple[Tensor, Tensor]:
        """Return the first layer of all users, and that of all items."""
        of_users, of_items = self.item_linear.weight, self.user_linear.weight
        width = max(of_users.shape[1], of_items.shape[1])
        weights = [functional.pad(one, (0, width - one.shape[1])) for one in (of_users, of_items)]
        users, items = self.graph.split(self.graph(torch.cat(weights), self.known.ratings))
        return users[:, : of_items.shape[1]], items[:, : of_users.shape[1]]

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return the score of each pair: a cosine, or an inner product if `similarity` is "dot"."""
        users, items = self.towers()
        return dot(self._finished(users[user], self.user_fc_layers), self._finished(items[item], self.item_fc_layers))

    def _finished(self, first: Tensor, layers: nn.Module) -> Tensor:
        last: Tensor = layers(first)
        return last if self.similarity == "dot" else functional.normalize(at_least_float32(last), dim=-1)

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """Return the last layer of all users, and that of all items."""
        users, items = self.towers()
        return self._finished(users, self.user_fc_layers), self._finished(items, self.item_fc_layers)

    def user_vectors(self) -> Tensor:
        """Return the last layer of each user id."""
        return self.embeddings()[0]

    def item_vectors(self) -> Tensor:
        """Return the last layer of each item id."""
        return self.embeddings()[1]

    @torch.no_grad()
    def score_histories(self, histories: Histories) -> Tensor:
        """Return the scores of all items for people who have a history: a row of the matrix like any other.

        Raises:
            ConfigError: The matrix is one of ratings.
        """
        if self.inter_matrix_type == "rating":
            raise ConfigError(
                "DMF cannot recommend by a history: inter_matrix_type='rating' goes by ratings, which a history has not"
            )
        rows = histories.rows(torch.arange(histories.n_users, device=self.user_linear.weight.device))
        users = self._finished(rows @ self.user_linear.weight, self.user_fc_layers)
        return self._bounded(all_dots(users, self.remembered(self.embeddings)[1]))

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the cross-entropy of scores and ratings, these divided by the highest."""
        score = at_least_float32(self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID]))
        target: Tensor = interaction[self.LABEL].to(score.dtype)
        if self.inter_matrix_type == "rating":
            target = target * interaction[self.RATING] / self.max_rating
        if self.similarity == "dot":
            return functional.binary_cross_entropy_with_logits(score, target)
        score = score.clamp(LEAST, 1 - LEAST)
        return -(target * score.log() + (1 - target) * torch.log1p(-score)).mean()

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the score of each row between 0 and 1, `[rows]`."""
        users, items = self.remembered(self.embeddings)
        return self._bounded(dot(users[interaction[self.USER_ID]], items[interaction[self.ITEM_ID]]))

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items between 0 and 1, `[rows * n_items]`."""
        users, items = self.remembered(self.embeddings)
        return self._bounded(all_dots(users[interaction[self.USER_ID]], items))

    def _bounded(self, score: Tensor) -> Tensor:
        return score.sigmoid() if self.similarity == "dot" else score
