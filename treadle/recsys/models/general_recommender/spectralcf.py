"""Spectral collaborative filtering."""

import torch
from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.bases.graph import LayeredGraphRecommender
from treadle.recsys.models.graph import Graph
from treadle.recsys.models.init import xavier_uniform_initialization
from treadle.recsys.models.loss import BPRLoss, EmbLoss
from treadle.recsys.models.settings import number, whole


class SpectralCF(LayeredGraphRecommender):
    """Layers that filter the embeddings by the spectrum of the graph: `X <- sigmoid((I + L) X W)`.

    Zheng, Lu, Jiang, Zhang and Yu, "Spectral collaborative filtering", 2018. `L` is `I - A / degree`; all layers side
    by side make the score.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
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
