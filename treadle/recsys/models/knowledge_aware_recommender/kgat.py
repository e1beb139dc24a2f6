"""Knowledge graph attention network."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.knowledge_dataset import KnowledgeBasedDataset
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import KnowledgeRecommender
from treadle.recsys.models.bases.graph import PropagatedScores
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.graph import Edges, softmax_by_head
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.functional import dot, projected
from treadle.recsys.models.loss import BPRLoss, EmbLoss, at_least_float32
from treadle.recsys.models.settings import choice, number, share, sizes, whole


class KGAT(PropagatedScores, KnowledgeRecommender):
    """Embeddings that are passed along the graph of users, items and entities, by attention that TransR gives.

    Wang, He, Cao, Liu and Chua, "KGAT: knowledge graph attention network for recommendation", 2019. How much a triple
    counts for its head is fixed within an epoch: at first it is one part of the triples that the head has of the same
    relation; `update_attentive_A` calculates it anew, and the trainer calls it after each epoch. It is a buffer, and so
    part of every checkpoint. With `require_pow`, as is the default, the penalties are half the squares.

    Attributes:
        attention: How much each triple counts for its head.
    """

    input_type = InputType.PAIRWISE
    attention: Tensor

    def __init__(self, config: Config, dataset: KnowledgeBasedDataset) -> None:
        super().__init__(config, dataset)
        self.embedding_size = whole(config, "embedding_size")
        self.kg_embedding_size = whole(config, "kg_embedding_size")
        self.layers = [self.embedding_size, *sizes(config, "layers")]
        self.aggregator_type = choice(config, "aggregator_type", ("bi", "gcn", "graphsage"))
        self.mess_dropout = share(config, "mess_dropout")
        self.reg_weight = number(config, "reg_weight")
        self.require_pow = bool(config["require_pow"])
        self.user_embedding = nn.Embedding(self.n_users, self.embedding_size)
        self.entity_embedding = nn.Embedding(self.n_entities, self.embedding_size)
        self.relation_embedding = nn.Embedding(self.n_relations, self.kg_embedding_size)
        self.trans_w = nn.Embedding(self.n_relations, self.embedding_size * self.kg_embedding_size)
        self.aggregator_layers = nn.ModuleList(
            [
                Aggregator(size, following, self.mess_dropout, self.aggregator_type)
                for size, following in zip(self.layers[:-1], self.layers[1:], strict=True)
            ]
        )
        self.mf_loss, self.reg_loss = BPRLoss(), EmbLoss()
        self._lay_out(dataset)
        self.apply(xavier_normal_initialization)

    def _lay_out(self, dataset: KnowledgeBasedDataset) -> None:
        """Keep the graph: all of it for inner layers, and for the last one what users and items hear of."""
        heads, relations, tails = dataset.collaborative_triples()
        order = heads.sort(stable=True).indices
        heads, relations, tails = heads[order], relations[order], tails[order]
        nodes, self.n_scored = self.n_users + self.n_entities, self.n_users + self.n_items
        # Sorted by head, and entities that are no items come last: a part of the edges is a beginning of them.
        heard = int((heads < self.n_scored).sum())
        self.edges = Edges(heads, tails, nodes, nodes)
        self.last_edges = Edges(heads[:heard], tails[:heard], self.n_scored, nodes)
        counts = torch.bincount(heads * self.n_relations + relations, minlength=nodes * self.n_relations)
        self.register_buffer("attention", 1.0 / counts[heads * self.n_relations + relations].float())
        # A node is projected once for each relation that it has, not once for each triple.
        pairs, places = torch.unique(relations.repeat(2) * nodes + torch.cat([heads, tails]), return_inverse=True)
        ends = places.view(2, -1)
        self.pairs = Constants(
            nodes=pairs % nodes, relations=pairs // nodes, heads=ends[0], tails=ends[1], of_edges=relations
        )

    @property
    def _matrices(self) -> Tensor:
        return self.trans_w.weight.view(self.n_relations, self.embedding_size, self.kg_embedding_size)

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings of users and of items, those of all layers side by side."""
        own = torch.cat([self.user_embedding.weight, self.entity_embedding.weight])
        found = [own[: self.n_scored]]
        last = len(self.aggregator_layers) - 1
        for place, layer in enumerate(self.aggregator_layers):
            edges = self.last_edges if place == last else self.edges
            heard = edges(own, self.attention[: edges.n_edges])
            own = layer(own[: edges.n_heads], heard)
            found.append(functional.normalize(at_least_float32(own[: self.n_scored]), dim=1))
        together = torch.cat([at_least_float32(one) for one in found], dim=1)
        return together[: self.n_users], together[self.n_users :]

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the pairwise loss, and the penalty on the embeddings."""
        all_users, all_items = self.forward()
        users = all_users.index_select(0, interaction[self.USER_ID])
        positives = all_items.index_select(0, interaction[self.ITEM_ID])
        negative = interaction[self.NEG_ITEM_ID]
        negatives = all_items.index_select(0, negative.reshape(-1)).view(*negative.shape, -1)
        loss: Tensor = self.mf_loss(dot(users, positives), dot(users, negatives))
        penalty: Tensor = self.reg_loss(users, positives, negatives, require_pow=self.require_pow)
        return loss + self.reg_weight * penalty

    def calculate_kg_loss(self, interaction: Interaction) -> Tensor:
        """Return the loss of triples against those with wrong tails, and the penalty."""
        relation = interaction[self.RELATION_ID]
        names = (self.HEAD_ENTITY_ID, self.TAIL_ENTITY_ID, self.NEG_TAIL_ENTITY_ID)
        entities = self.entity_embedding(torch.stack([interaction[name] for name in names], dim=1))
        heads, tails, others = at_least_float32(projected(entities, relation, self._matrices)).unbind(1)
        relations = self.relation_embedding(relation)
        near, far = ((heads + relations - end).square().sum(dim=1) for end in (tails, others))
        penalty: Tensor = self.reg_loss(heads, relations, tails, others, require_pow=self.require_pow)
        return functional.softplus(near - far).mean() + self.reg_weight * penalty

    @torch.no_grad()
    def update_attentive_A(self) -> None:  # noqa: N802  # RecBole's name
        """Calculate how much each triple counts for its head, from the embeddings as they are."""
        own = torch.cat([self.user_embedding.weight, self.entity_embedding.weight])
        with torch.autocast(own.device.type, enabled=False):
            pairs = self.pairs
            vectors = projected(own.index_select(0, pairs.nodes), pairs.relations, self._matrices)
            relations = self.relation_embedding.weight.index_select(0, pairs.of_edges)
            heads = torch.tanh(vectors.index_select(0, pairs.heads) + relations)
            scores = dot(vectors.index_select(0, pairs.tails), heads)
            # In place: a recorded step reads it where it was.
            self.attention.copy_(softmax_by_head(scores, self.edges))


class Aggregator(nn.Module):
    """Makes one vector of a node's own and of what it hears from others.

    Args:
        input_dim: The size of both.
        output_dim: The size of the result.
        dropout: The share of numbers that are dropped in training.
        aggregator_type: `gcn` transforms their sum, `graphsage` both side by side, and `bi` their sum and their
            product.
    """

    def __init__(self, input_dim: int, output_dim: int, dropout: float, aggregator_type: str) -> None:
        super().__init__()
        self.aggregator_type = aggregator_type
        self.message_dropout = nn.Dropout(dropout)
        if aggregator_type == "bi":
            self.W1, self.W2 = nn.Linear(input_dim, output_dim), nn.Linear(input_dim, output_dim)
        else:
            self.W = nn.Linear(input_dim * (2 if aggregator_type == "graphsage" else 1), output_dim)
        self.activation = nn.LeakyReLU()

    def forward(self, own: Tensor, heard: Tensor) -> Tensor:
        """Return the new vectors of nodes."""
        if self.aggregator_type == "bi":
            made = self.activation(self.W1(own + heard)) + self.activation(self.W2(own * heard))
        else:
            both = own + heard if self.aggregator_type == "gcn" else torch.cat([own, heard], dim=1)
            made = self.activation(self.W(both))
        dropped: Tensor = self.message_dropout(made)
        return dropped
