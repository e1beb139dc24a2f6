"""Collaborative filtering on a knowledge graph."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import KnowledgeRecommender
from treadle.recsys.models.init import xavier_uniform_initialization
from treadle.recsys.models.layers.functional import all_dots, dot
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import choice, number, whole

EPSILON = 1e-6
"""Added to differences before their norm, as torch's margin loss does, lest the gradient of 0 be undefined."""


class CFKG(KnowledgeRecommender):
    """One graph of users and entities, in which choosing an item is a relation among others, learnt by translation.

    Ai, Azizi, Chen and Zhang, "Learning heterogeneous knowledge base embeddings for explainable recommendation", 2018.
    A triple is scored by the inner product of `head + relation` with its tail (`loss_function: inner_product`), or by
    minus their distance (`transe`), which has to be `margin` less than that of a wrong tail.
    """

    input_type = InputType.PAIRWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.embedding_size = whole(config, "embedding_size")
        self.loss_function = choice(config, "loss_function", ("inner_product", "transe"))
        self.margin = number(config, "margin")
        self.user_embedding = nn.Embedding(self.n_users, self.embedding_size)
        self.entity_embedding = nn.Embedding(self.n_entities, self.embedding_size)
        # The last relation is that of users and items.
        self.relation_embedding = nn.Embedding(self.n_relations, self.embedding_size)
        self.apply(xavier_uniform_initialization)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return the score of each pair."""
        return self._score(self._chosen(user), self.entity_embedding(item))

    def _chosen(self, user: Tensor) -> Tensor:
        """Return the vectors of users, translated by the relation of users and items."""
        vectors: Tensor = self.user_embedding(user) + self.relation_embedding.weight[-1]
        return vectors

    def _score(self, start: Tensor, end: Tensor) -> Tensor:
        if self.loss_function == "inner_product":
            return dot(start, end)
        if end.dim() > start.dim():
            start = start.unsqueeze(-2)
        distances: Tensor = (at_least_float32(start - end) + EPSILON).norm(dim=-1)
        return -distances

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the loss of all triples of a batch: those of users and items, and those of the graph."""
        users = self._chosen(interaction[self.USER_ID])
        heads = self.entity_embedding(interaction[self.HEAD_ENTITY_ID])
        heads = heads + self.relation_embedding(interaction[self.RELATION_ID])
        chosen = self._losses(users, interaction[self.ITEM_ID], interaction[self.NEG_ITEM_ID])
        known = self._losses(heads, interaction[self.TAIL_ENTITY_ID], interaction[self.NEG_TAIL_ENTITY_ID])
        return torch.cat([chosen, known]).mean()

    def _losses(self, starts: Tensor, end: Tensor, other: Tensor) -> Tensor:
        """Return the loss of each triple; against several wrong ends it is the mean over them."""
        right, wrong = (at_least_float32(self._score(starts, self.entity_embedding(one))) for one in (end, other))
        right = right.unsqueeze(-1)
        wrong = wrong.view(len(right), -1)
        if self.loss_function == "inner_product":
            return (functional.softplus(-right) + functional.softplus(wrong)).mean(dim=1)
        return functional.relu(self.margin + wrong - right).mean(dim=1)

    def item_vectors(self) -> Tensor:
        """Return the vector of each item: that of its entity."""
        return self.entity_embedding.weight[: self.n_items]

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the score of each row, `[rows]`."""
        return self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID])

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items, `[rows * n_items]`."""
        users, items = self._chosen(interaction[self.USER_ID]), self.item_vectors()
        if self.loss_function == "inner_product":
            return all_dots(users, items)
        return torch.cat([self._score(user, items) for user in users])
