"""Spectral collaborative filtering."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import GeneralRecommender
from treadle.recsys.models.general_recommender.lightgcn import rows_of
from treadle.recsys.models.graph import Graph
from treadle.recsys.models.init import xavier_uniform_initialization
from treadle.recsys.models.loss import BPRLoss, EmbLoss
from treadle.recsys.models.scoring import all_dots, dot
from treadle.recsys.models.settings import number, whole

if TYPE_CHECKING:
    from treadle.recsys.config import Config
    from treadle.recsys.dataset import Dataset
    from treadle.recsys.interaction import Interaction


class SpectralCF(GeneralRecommender):
    """Layers that filter the embeddings by the spectrum of the graph: `X <- sigmoid((I + L) X W)`.

    Zheng, Lu, Jiang, Zhang and Yu, "Spectral collaborative filtering", 2018. `L` is `I - A / degree`; all layers side
    by side make the score.
    """

    input_type = InputType.PAIRWISE

    def __init__(self, config: "Config", dataset: "Dataset") -> None:
        super().__init__(config, dataset)
        self.emb_dim, self.n_layers = whole(config, "embedding_size"), whole(config, "n_layers", 0)
        self.reg_weight = number(config, "reg_weight")
        self.require_pow = bool(config["require_pow"])
        self.graph = Graph.of(dataset, normalised=False)
        self.user_embedding = nn.Embedding(self.n_users, self.emb_dim)
        self.item_embedding = nn.Embedding(self.n_items, self.emb_dim)
        self.apply(xavier_uniform_initialization)
        filters = [torch.normal(0.01, 0.02, size=(self.emb_dim, self.emb_dim)) for _ in range(self.n_layers)]
        self.filters = nn.ParameterList([nn.Parameter(one) for one in filters])
        self.mf_loss, self.reg_loss = BPRLoss(), EmbLoss()

    def _filtered(self, features: Tensor) -> Tensor:
        """Return `(I + L) X`: twice the features of a node, less the mean of its neighbours."""
        mean: Tensor = self.graph(features) / self.graph.degrees.clamp(min=1).unsqueeze(1)
        return 2 * features - mean

    def embeddings(self) -> Tensor:
        """Return the outputs of all layers side by side, for all users and items, in one tensor."""
        features = torch.cat([self.user_embedding.weight, self.item_embedding.weight])
        layers = [features]
        for one in self.filters:
            features = torch.matmul(self._filtered(features), one).sigmoid()
            layers.append(features)
        return torch.cat([layer.to(layers[0].dtype) for layer in layers], dim=1)

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings of users, and those of items."""
        return self.graph.split(self.embeddings())

    def calculate_loss(self, interaction: "Interaction") -> Tensor:
        """Return the pairwise loss, and the penalty on the embeddings."""
        negative = interaction[self.NEG_ITEM_ID]
        nodes = self.graph.nodes(interaction[self.USER_ID], interaction[self.ITEM_ID], negative)
        users, positives, negatives = rows_of(self.embeddings(), nodes, negative)
        loss: Tensor = self.mf_loss(dot(users, positives), dot(users, negatives))
        penalty: Tensor = self.reg_loss(users, positives, negatives, require_pow=self.require_pow)
        return loss + self.reg_weight * penalty

    def predict(self, interaction: "Interaction") -> Tensor:
        """Return the score of each row, `[rows]`."""
        users, items = self.remembered(self.forward)
        return dot(users[interaction[self.USER_ID]], items[interaction[self.ITEM_ID]])

    def full_sort_predict(self, interaction: "Interaction") -> Tensor:
        """Return the scores of all items, `[rows * n_items]`."""
        users, items = self.remembered(self.forward)
        return all_dots(users[interaction[self.USER_ID]], items)
