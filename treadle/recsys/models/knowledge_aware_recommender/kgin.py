"""Knowledge graph based intent network."""

from itertools import combinations

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.knowledge_dataset import KnowledgeBasedDataset
from treadle.recsys.enums import InputType, KGDataLoaderState
from treadle.recsys.models.abstract_recommender import KnowledgeRecommender
from treadle.recsys.models.bases.graph import PropagatedScores
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.graph import Edges
from treadle.recsys.models.init import xavier_uniform_initialization
from treadle.recsys.models.layers.functional import dot
from treadle.recsys.models.loss import BPRLoss, EmbLoss, at_least_float32
from treadle.recsys.models.settings import choice, number, share, whole

SMALLEST = 1e-8
"""What is under a root at least, lest its gradient be infinite."""


class KGIN(PropagatedScores, KnowledgeRecommender):
    """Users choose by intents, each of which is a mixture of relations, and entities keep by which paths they heard.

    Wang, Huang, Wang, Yuan, Liu, He and Chua, "Learning intents behind interactions with knowledge graph for
    recommendation", 2021. The intents are kept apart by `ind`: the distance correlation of each two, their cosines, or
    what they tell of each other. In training a share `node_dropout_rate` of the edges is left out of every batch.
    """

    input_type = InputType.PAIRWISE
    batch_state = KGDataLoaderState.RS

    def __init__(self, config: Config, dataset: KnowledgeBasedDataset) -> None:
        super().__init__(config, dataset)
        self.embedding_size = whole(config, "embedding_size")
        self.n_factors, self.context_hops = whole(config, "n_factors"), whole(config, "context_hops")
        self.node_dropout_rate = share(config, "node_dropout_rate")
        self.ind = choice(config, "ind", ("distance", "cosine", "mi"))
        self.sim_decay, self.reg_weight = number(config, "sim_regularity"), number(config, "reg_weight")
        self.require_pow = bool(config["require_pow"])
        self.temperature = number(config, "temperature", 1e-6)
        self.user_embedding = nn.Embedding(self.n_users, self.embedding_size)
        self.entity_embedding = nn.Embedding(self.n_entities, self.embedding_size)
        self.latent_embedding = nn.Embedding(self.n_factors, self.embedding_size)
        # The relation of users and items, the last one, and the padding are none of the graph's.
        self.relation_embedding = nn.Embedding(self.n_relations - 2, self.embedding_size)
        self.disen_weight_att = nn.Parameter(torch.empty(self.n_factors, self.n_relations - 2))
        self.mess_dropout = nn.Dropout(share(config, "mess_dropout_rate"))
        self._lay_out(dataset)
        self.mf_loss, self.reg_loss = BPRLoss(), EmbLoss()
        self.apply(xavier_uniform_initialization)
        nn.init.xavier_uniform_(self.disen_weight_att)

    def _lay_out(self, dataset: KnowledgeBasedDataset) -> None:
        heads, relations, tails = (part.cpu() for part in dataset.triples())
        order = heads.sort(stable=True).indices
        messages = torch.arange(len(heads))
        # A head sums over messages, of which each edge has its own.
        self.edges = Edges(heads[order], messages, self.n_entities, len(heads))
        self.triples = Constants(relations=relations[order] - 1, tails=tails[order])
        users, items = (ids.cpu() for ids in dataset.positive_pairs())
        self.choices = Edges(users, items, self.n_users, self.n_entities)
        counts = torch.bincount(users, minlength=self.n_users)
        self.shares = Constants(of_choices=1.0 / counts[users].float())

    def _kept(self, number: int, like: Tensor) -> Tensor | None:
        """Return 1 for edges that stay in a batch, and 0 for others; None if all do."""
        if not self.training or self.node_dropout_rate == 0:
            return None
        return torch.empty(number, device=like.device).bernoulli_(1 - self.node_dropout_rate)

    def _entities_heard(self, entities: Tensor, kept: Tensor | None) -> Tensor:
        """Return the mean of what each entity hears: its neighbours, each times the relation to it."""
        relations = self.relation_embedding.weight.index_select(0, self.triples.relations)
        messages = relations * entities.index_select(0, self.triples.tails)
        weights = torch.ones(self.edges.n_edges, device=entities.device) if kept is None else kept
        counts = weights.new_zeros(self.n_entities).index_add_(0, self.edges.heads, weights).clamp_(min=1)
        mean: Tensor = self.edges(messages, weights / counts[self.edges.heads])
        return mean

    def _users_heard(self, users: Tensor, entities: Tensor, kept: Tensor | None) -> Tensor:
        """Return the mean of what users chose, bent by the intents that each of them has."""
        weights = self.shares.of_choices
        if kept is not None:
            weights = weights * kept / (1 - self.node_dropout_rate)
        chosen: Tensor = self.choices(entities, weights)
        intents = torch.matmul(functional.softmax(self.disen_weight_att, dim=1), self.relation_embedding.weight)
        cares = functional.softmax(at_least_float32(torch.matmul(users, self.latent_embedding.weight.T)), dim=1)
        return chosen * torch.matmul(cares.to(intents.dtype), intents) + chosen

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings of users and of entities: the sums over all hops."""
        users, entities = self.user_embedding.weight, self.entity_embedding.weight
        all_users, all_entities = users, entities
        triples, choices = (self._kept(edges.n_edges, users) for edges in (self.edges, self.choices))
        for _ in range(self.context_hops):
            heard = self._entities_heard(entities, triples)
            users = self._shortened(self._users_heard(users, entities, choices))
            entities = self._shortened(heard)
            all_users, all_entities = all_users + users, all_entities + entities
        return all_users, all_entities

    def _shortened(self, vectors: Tensor) -> Tensor:
        dropped: Tensor = self.mess_dropout(functional.normalize(at_least_float32(vectors), dim=1))
        return dropped

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the pairwise loss, the penalty, and how much the intents are alike."""
        all_users, all_entities = self.forward()
        users = all_users.index_select(0, interaction[self.USER_ID])
        positives = all_entities.index_select(0, interaction[self.ITEM_ID])
        negative = interaction[self.NEG_ITEM_ID]
        negatives = all_entities.index_select(0, negative.reshape(-1)).view(*negative.shape, -1)
        loss: Tensor = self.mf_loss(dot(users, positives), dot(users, negatives))
        penalty: Tensor = self.reg_loss(users, positives, negatives, require_pow=self.require_pow)
        return loss + self.reg_weight * penalty + self.sim_decay * self.likeness_of_intents()

    def likeness_of_intents(self) -> Tensor:
        """Return how much the intents are alike, by the measure that `ind` names."""
        intents = at_least_float32(self.disen_weight_att)
        if self.ind == "mi":
            return mutual_information(intents, self.temperature)
        alike = distance_correlation if self.ind == "distance" else squared_cosine
        pairs = [alike(intents[one], intents[other]) for one, other in combinations(range(self.n_factors), 2)]
        return torch.stack(pairs).sum() if pairs else intents.new_zeros(())

    def scored_vectors(self) -> tuple[Tensor, Tensor]:
        """Return the vectors of all users, and those of all items, which are the first entities."""
        users, entities = self.forward()
        return users, entities[: self.n_items]


def squared_cosine(first: Tensor, second: Tensor) -> Tensor:
    """Return the square of the cosine of two vectors.

    >>> squared_cosine(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])).item()
    1.0
    """
    return functional.cosine_similarity(first, second, dim=0).square()


def distance_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Return the distance correlation of two vectors, taken as samples of two numbers.

    Székely, Rizzo and Bakirov, "Measuring and testing dependence by correlation of distances", 2007.

    >>> round(distance_correlation(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0.0, 2.0, 10.0])).item(), 4)
    1.0
    """
    one, other = _centred_distances(first), _centred_distances(second)
    covariance, own, others = ((a * b).mean() for a, b in ((one, other), (one, one), (other, other)))
    rooted = [part.clamp(min=0).add(SMALLEST).sqrt() for part in (covariance, own, others)]
    return rooted[0] / (rooted[1] * rooted[2] + SMALLEST).sqrt()


def _centred_distances(values: Tensor) -> Tensor:
    # The root of squares, and not their absolute value, has a gradient that does not jump at 0.
    distances = ((values.unsqueeze(0) - values.unsqueeze(1)).square() + SMALLEST).sqrt()
    return distances - distances.mean(dim=0) - distances.mean(dim=1, keepdim=True) + distances.mean()


def mutual_information(intents: Tensor, temperature: float) -> Tensor:
    """Return how well each intent is told from all by its own direction, as a sum of logarithms to be made small.

    Args:
        intents: `[intents, relations]`.
        temperature: What cosines are divided by.
    """
    directions = functional.normalize(intents, dim=1)
    scores = torch.matmul(directions, directions.T) / temperature
    return -(scores.diagonal() - torch.logsumexp(scores, dim=1)).sum()
