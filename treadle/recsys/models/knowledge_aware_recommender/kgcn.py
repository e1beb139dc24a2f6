"""Knowledge graph convolutional network."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.knowledge_dataset import KnowledgeBasedDataset
from treadle.recsys.data.sampling.neighbours import Neighbours
from treadle.recsys.enums import InputType, KGDataLoaderState
from treadle.recsys.models.abstract_recommender import KnowledgeRecommender
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.functional import dot
from treadle.recsys.models.loss import EmbLoss, at_least_float32
from treadle.recsys.models.settings import choice, number, whole


class KGCN(KnowledgeRecommender):
    """Items that are made of their neighbours in the graph, each weighed by how much the user cares for its relation.

    Wang, Zhao, Xie, Li and Guo, "Knowledge graph convolutional networks for recommender systems", 2019. Of every entity
    `neighbor_sample_size` neighbours are drawn once, by the seed, whichever end of a triple they are. The loss is the
    cross-entropy of labels: those that the data has, or of sampled items. The penalty is on half the squares.

    With a `user_mean` above 0 users begin alike, and what all of them like, popular items above all, is learned as
    one direction. It helps where many users have few rows: a vector that begins at random says nothing after two steps.
    """

    input_type = InputType.POINTWISE
    batch_state = KGDataLoaderState.RS

    def __init__(self, config: Config, dataset: KnowledgeBasedDataset) -> None:
        super().__init__(config, dataset)
        self.LABEL = str(config["LABEL_FIELD"])
        self.embedding_size = whole(config, "embedding_size")
        self.n_iter = whole(config, "n_iter")
        self.neighbor_sample_size = whole(config, "neighbor_sample_size")
        self.aggregator_class = choice(config, "aggregator", ("sum", "concat", "neighbor"))
        self.reg_weight = number(config, "reg_weight")
        self.require_pow = bool(config["require_pow"])
        self.user_embedding = nn.Embedding(self.n_users, self.embedding_size)
        self.entity_embedding = nn.Embedding(self.n_entities, self.embedding_size)
        self.relation_embedding = nn.Embedding(self.n_relations, self.embedding_size)
        width = self.embedding_size * (2 if self.aggregator_class == "concat" else 1)
        self.linear_layers = nn.ModuleList([nn.Linear(width, self.embedding_size) for _ in range(self.n_iter)])
        heads, relations, tails = (part.cpu() for part in dataset.triples())
        graph = Neighbours.both_ways(heads, relations, tails, self.n_entities)
        entities, relations = graph.sample(self.neighbor_sample_size, seed=int(config["seed"]))
        self.neighbours = Constants(entities=entities, relations=relations)
        self.bce_loss, self.l2_loss = nn.BCEWithLogitsLoss(), EmbLoss()
        self.apply(xavier_normal_initialization)
        with torch.no_grad():
            self.user_embedding.weight += number(config, "user_mean")

    def forward(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors of users, and those that items have for them."""
        users = self.user_embedding(user)
        return users, self._aggregated(users, item)

    def _aggregated(self, users: Tensor, item: Tensor) -> Tensor:
        """Return items as their surroundings of `n_iter` steps make them, `[rows, size]`."""
        rows, size = len(item), self.neighbor_sample_size
        entities, weights = [item.view(rows, 1)], []
        # How much a user cares for a relation is the same everywhere in the graph.
        cares = torch.matmul(users, self.relation_embedding.weight.T)
        for _ in range(self.n_iter):
            relations = self.neighbours.relations[entities[-1]].view(rows, -1)
            scores = at_least_float32(cares.gather(1, relations)).view(rows, -1, size)
            weights.append(functional.softmax(scores, dim=2))
            entities.append(self.neighbours.entities[entities[-1]].view(rows, -1))
        vectors = [self.entity_embedding(some) for some in entities]
        for place, layer in enumerate(self.linear_layers):
            activation = torch.tanh if place == self.n_iter - 1 else torch.relu
            for hop in range(self.n_iter - place):
                around = vectors[hop + 1].view(rows, -1, size, self.embedding_size)
                heard = torch.matmul(weights[hop].to(around.dtype).unsqueeze(2), around).squeeze(2)
                vectors[hop] = activation(layer(self._mixed(vectors[hop], heard)))
        found: Tensor = vectors[0].view(rows, self.embedding_size)
        return found

    def _mixed(self, own: Tensor, heard: Tensor) -> Tensor:
        if self.aggregator_class == "sum":
            return own + heard
        return torch.cat([own, heard], dim=2) if self.aggregator_class == "concat" else heard

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the cross-entropy of the labels, and the penalty."""
        user, item = interaction[self.USER_ID], interaction[self.ITEM_ID]
        users, items = self.forward(user, item)
        logits = at_least_float32(dot(users, items))
        loss: Tensor = self.bce_loss(logits, interaction[self.LABEL].to(logits.dtype))
        penalty: Tensor = self.l2_loss(users, self.entity_embedding(item), require_pow=self.require_pow)
        return loss + self.reg_weight * penalty

    def item_vectors(self) -> Tensor:
        """Return the vector of each item: that of its entity."""
        return self.entity_embedding.weight[: self.n_items]

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the probability of each row, `[rows]`."""
        users, items = self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID])
        return at_least_float32(dot(users, items)).sigmoid()
