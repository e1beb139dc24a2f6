"""Neural graph collaborative filtering."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.bases.graph import LayeredGraphRecommender
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.graph import Graph
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.interactions import BiGNNLayer
from treadle.recsys.models.loss import BPRLoss, EmbLoss
from treadle.recsys.models.settings import number, share, sizes, whole


class NGCF(LayeredGraphRecommender):
    """Layers in which a node takes up its neighbours, and what it has in common with them; all layers make the score.

    Wang, He, Wang, Feng and Chua, "Neural graph collaborative filtering", 2019. With `require_pow`, as is the default,
    the penalty is half the squares of the final embeddings of a batch, as in the authors' program.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.embedding_size = whole(config, "embedding_size")
        self.hidden_size_list = [self.embedding_size, *sizes(config, "hidden_size_list")]
        self.node_dropout = share(config, "node_dropout")
        self.message_dropout = share(config, "message_dropout")
        self.reg_weight = number(config, "reg_weight")
        self.require_pow = bool(config["require_pow"])
        self.graph = Graph.of(dataset)
        self.back = Constants(edges=self.graph.opposite_edges()) if self.node_dropout else None
        self.user_embedding = nn.Embedding(self.n_users, self.embedding_size)
        self.item_embedding = nn.Embedding(self.n_items, self.embedding_size)
        self.GNNlayers = nn.ModuleList([BiGNNLayer(size, after) for size, after in pairwise(self.hidden_size_list)])
        self.mf_loss, self.reg_loss = BPRLoss(), EmbLoss()
        self.apply(xavier_normal_initialization)

    def embeddings(self) -> Tensor:
        """Return the outputs of all layers side by side, for all users and items, in one tensor."""
        features = torch.cat([self.user_embedding.weight, self.item_embedding.weight])
        layers, weights, opposite = [features], None, None
        if self.training and self.back is not None:
            weights = functional.dropout(self.graph.weights, self.node_dropout)
            opposite = weights[self.back.edges]
        for layer in self.GNNlayers:
            features = layer(lambda values: self.graph(values, weights, opposite), None, features)
            features = functional.leaky_relu(features, negative_slope=0.2)
            features = functional.dropout(features, self.message_dropout, training=self.training)
            features = functional.normalize(features, p=2, dim=1)
            layers.append(features)
        return torch.cat([layer.to(layers[0].dtype) for layer in layers], dim=1)
