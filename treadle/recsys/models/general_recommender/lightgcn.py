"""LightGCN."""

import torch
from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import GeneralRecommender
from treadle.recsys.models.bases.graph import PropagatedScores, gather_triples
from treadle.recsys.models.graph import Graph
from treadle.recsys.models.init import xavier_uniform_initialization
from treadle.recsys.models.layers.functional import margins
from treadle.recsys.models.loss import BPRLoss, EmbLoss
from treadle.recsys.models.settings import choice, number, whole


class LightGCN(PropagatedScores, GeneralRecommender):
    """Embeddings that are smoothed over the graph of users and items: the mean over `n_layers` rounds of averaging.

    He, Deng, Wang, Li, Zhang and Wang, "LightGCN: simplifying and powering graph convolution network for
    recommendation", 2020. With `require_pow`, as is the default, the penalty is the paper's: half the squares of the
    embeddings of a batch before smoothing.
    """

    input_type = InputType.PAIRWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.latent_dim = whole(config, "embedding_size")
        self.n_layers = whole(config, "n_layers", 0)
        self.reg_weight = number(config, "reg_weight")
        self.require_pow = bool(config["require_pow"])
        narrow = choice(config, "message_precision", ("fp32", "bf16")) == "bf16"
        self.messages = torch.bfloat16 if narrow else None
        self.user_embedding = nn.Embedding(self.n_users, self.latent_dim)
        self.item_embedding = nn.Embedding(self.n_items, self.latent_dim)
        self.graph = Graph.of(dataset)
        self.mf_loss, self.reg_loss = BPRLoss(), EmbLoss()
        self.apply(xavier_uniform_initialization)

    def get_ego_embeddings(self) -> Tensor:
        """Return the embeddings of all users and items, in one tensor."""
        return torch.cat([self.user_embedding.weight, self.item_embedding.weight])

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the smoothed embeddings of users, and those of items."""
        return self.graph.split(self._smoothed(self.get_ego_embeddings()))

    def _smoothed(self, embeddings: Tensor) -> Tensor:
        return self.graph.mean_of_powers(embeddings, self.n_layers, messages=self.messages)

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the pairwise loss, and the penalty on the embeddings."""
        negative = interaction[self.NEG_ITEM_ID]
        nodes = self.graph.nodes(interaction[self.USER_ID], interaction[self.ITEM_ID], negative)
        own = self.get_ego_embeddings()
        users, positives, negatives = gather_triples(self._smoothed(own), nodes, negative)
        loss = self.mf_loss.from_differences(margins(users, positives, negatives))
        return loss + self.reg_weight * self._penalty(own, nodes, negative)

    def _penalty(self, own: Tensor, nodes: Tensor, negative: Tensor) -> Tensor:
        """Return the penalty on the embeddings of a batch."""
        # Squares add up over users, positives and negatives: they need not be told apart, which is ten kernels less.
        parts = (own.index_select(0, nodes),) if self.require_pow else gather_triples(own, nodes, negative)
        penalty: Tensor = self.reg_loss(*parts, require_pow=self.require_pow, rows=len(negative))
        return penalty
