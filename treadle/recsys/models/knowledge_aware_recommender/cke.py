"""Collaborative knowledge base embedding."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import KnowledgeRecommender
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.functional import all_dots, dot, projected
from treadle.recsys.models.loss import BPRLoss, EmbLoss, at_least_float32
from treadle.recsys.models.settings import whole


class CKE(KnowledgeRecommender):
    """A factorisation whose items also have the vector of their entity, which TransR learns from the graph.

    Zhang, Yuan, Lian, Xie and Ma, "Collaborative knowledge base embedding for recommender systems", 2016, with the
    structural knowledge alone. A triple holds if `head W + relation` is near `tail W`, where `W` belongs to the
    relation and all three are brought to length 1. The loss has three parts: of pairs, of triples, and the penalty.
    """

    input_type = InputType.PAIRWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.embedding_size = whole(config, "embedding_size")
        self.kg_embedding_size = whole(config, "kg_embedding_size")
        self.reg_weights = _two_weights(config["reg_weights"])
        self.require_pow = bool(config["require_pow"])
        self.user_embedding = nn.Embedding(self.n_users, self.embedding_size)
        self.item_embedding = nn.Embedding(self.n_items, self.embedding_size)
        self.entity_embedding = nn.Embedding(self.n_entities, self.embedding_size)
        self.relation_embedding = nn.Embedding(self.n_relations, self.kg_embedding_size)
        self.trans_w = nn.Embedding(self.n_relations, self.embedding_size * self.kg_embedding_size)
        self.rec_loss, self.kg_loss, self.reg_loss = BPRLoss(), BPRLoss(), EmbLoss()
        self.apply(xavier_normal_initialization)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return the score of each pair."""
        return dot(self.user_embedding(user), self._items(item))

    def _items(self, item: Tensor) -> Tensor:
        vectors: Tensor = self.item_embedding(item) + self.entity_embedding(item)
        return vectors

    def calculate_loss(self, interaction: Interaction) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of pairs, that of triples, and the penalty."""
        rec, of_rec = self._rec_loss(interaction)
        graph, of_graph = self._kg_loss(interaction)
        return rec, graph, self.reg_weights[0] * of_rec + self.reg_weights[1] * of_graph

    def _rec_loss(self, interaction: Interaction) -> tuple[Tensor, Tensor]:
        users = self.user_embedding(interaction[self.USER_ID])
        positives, negatives = (self._items(interaction[name]) for name in (self.ITEM_ID, self.NEG_ITEM_ID))
        loss: Tensor = self.rec_loss(dot(users, positives), dot(users, negatives))
        return loss, self.reg_loss(users, positives, negatives, require_pow=self.require_pow)

    def _kg_loss(self, interaction: Interaction) -> tuple[Tensor, Tensor]:
        relation = interaction[self.RELATION_ID]
        names = (self.HEAD_ENTITY_ID, self.TAIL_ENTITY_ID, self.NEG_TAIL_ENTITY_ID)
        entities = self.entity_embedding(torch.stack([interaction[name] for name in names], dim=1))
        matrices = self.trans_w.weight.view(self.n_relations, self.embedding_size, self.kg_embedding_size)
        heads, tails, others = functional.normalize(projected(entities, relation, matrices), dim=-1).unbind(1)
        relations = functional.normalize(self.relation_embedding(relation), dim=-1)
        near, far = (at_least_float32(heads + relations - end).square().sum(dim=1) for end in (tails, others))
        loss: Tensor = self.kg_loss(far, near)
        return loss, self.reg_loss(heads, relations, tails, others, require_pow=self.require_pow)

    def item_vectors(self) -> Tensor:
        """Return the vector of each item: its own, and that of its entity."""
        return self.item_embedding.weight + self.entity_embedding.weight[: self.n_items]

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the score of each row, `[rows]`."""
        return self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID])

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items, `[rows * n_items]`."""
        return all_dots(self.user_embedding(interaction[self.USER_ID]), self.item_vectors())


def _two_weights(weights: Any) -> list[float]:
    good = isinstance(weights, (list, tuple)) and len(weights) == 2
    if not good or not all(isinstance(one, (int, float)) and one >= 0 for one in weights):
        raise ConfigError(f"reg_weights={weights!r} must be two numbers from 0: of pairs, and of triples")
    return [float(one) for one in weights]
