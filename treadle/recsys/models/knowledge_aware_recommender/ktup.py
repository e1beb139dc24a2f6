"""Knowledge-enhanced translation-based user preference model."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import KnowledgeRecommender
from treadle.recsys.models.init import xavier_uniform_initialization
from treadle.recsys.models.loss import BPRLoss, EmbMarginLoss, at_least_float32
from treadle.recsys.models.settings import number, whole


class KTUP(KnowledgeRecommender):
    """Users are translated to items by a preference, entities to entities by a relation, and each is also the other.

    Cao, Wang, He, Hu and Chua, "Unifying knowledge graph learning and recommendation: towards a better understanding
    of user preferences", 2019. Both translations are on a hyperplane of their own, as in TransH; each preference is
    bound to a relation. `use_st_gumbel` has one preference chosen for each pair, in training with noise; without it
    preferences are mixed. With `train_rec_step` and `train_kg_step` the trainer goes through interactions with
    `calculate_loss` and through triples with `calculate_kg_loss` in turns, by epochs.
    """

    input_type = InputType.PAIRWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.embedding_size = size = whole(config, "embedding_size")
        self.L1_flag, self.use_st_gumbel = bool(config["L1_flag"]), bool(config["use_st_gumbel"])
        self.kg_weight, self.align_weight = number(config, "kg_weight"), number(config, "align_weight")
        self.margin = number(config, "margin")
        self.user_embedding = nn.Embedding(self.n_users, size)
        self.item_embedding = nn.Embedding(self.n_items, size)
        self.entity_embedding = nn.Embedding(self.n_entities, size)
        self.pref_embedding = nn.Embedding(self.n_relations, size)
        self.pref_norm_embedding = nn.Embedding(self.n_relations, size)
        self.relation_embedding = nn.Embedding(self.n_relations, size)
        self.relation_norm_embedding = nn.Embedding(self.n_relations, size)
        self.rec_loss, self.reg_loss = BPRLoss(), EmbMarginLoss()
        self.apply(xavier_uniform_initialization)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Embedding):
                    module.weight.copy_(functional.normalize(module.weight, dim=1))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return minus the distance of each pair, or of a user and several items, `[rows]` or `[rows, n]`."""
        users = self.user_embedding(user)
        items = self.item_embedding(item) + self.entity_embedding(item)
        if items.dim() > users.dim():
            users = users.unsqueeze(-2)
        # A preference is that of users and that of the relation it is bound to, half and half.
        preferences = 0.5 * (self.pref_embedding.weight + self.relation_embedding.weight)
        normals = 0.5 * (self.pref_norm_embedding.weight + self.relation_norm_embedding.weight)
        shares = self._preferred(torch.matmul(users + items, preferences.T)).to(preferences.dtype)
        translation, normal = torch.matmul(shares, preferences), torch.matmul(shares, normals)
        return -self._distance(on_plane(users, normal) + translation - on_plane(items, normal))

    def _preferred(self, scores: Tensor) -> Tensor:
        """Return which preferences a pair goes by: shares, or a single one with the gradient of the shares."""
        scores = at_least_float32(scores)
        if not self.use_st_gumbel:
            return functional.softmax(scores, dim=-1)
        if self.training:
            return functional.gumbel_softmax(scores, hard=True)
        best = scores.argmax(dim=-1, keepdim=True)
        return torch.zeros_like(scores).scatter_(-1, best, 1.0)

    def _distance(self, difference: Tensor) -> Tensor:
        difference = at_least_float32(difference)
        return difference.abs().sum(dim=-1) if self.L1_flag else difference.square().sum(dim=-1)

    def calculate_loss(self, interaction: Interaction) -> tuple[Tensor, Tensor]:
        """Return the pairwise loss with what keeps preferences on their planes, and the loss of alignment."""
        user, item, other = (interaction[name] for name in (self.USER_ID, self.ITEM_ID, self.NEG_ITEM_ID))
        loss: Tensor = self.rec_loss(self.forward(user, item), self.forward(user, other))
        loss = loss + off_plane(self.pref_embedding.weight, self.pref_norm_embedding.weight)
        return loss, self._alignment(torch.cat([item, other.reshape(-1)]))

    def calculate_kg_loss(self, interaction: Interaction) -> tuple[Tensor, Tensor]:
        """Return the loss of triples against those with wrong tails, and the loss of alignment."""
        names = (self.HEAD_ENTITY_ID, self.TAIL_ENTITY_ID, self.NEG_TAIL_ENTITY_ID)
        ends, relation = [interaction[name] for name in names], interaction[self.RELATION_ID]
        entities = [self.entity_embedding(end) for end in ends]
        relations, normal = self.relation_embedding(relation), self.relation_norm_embedding(relation)
        head, tail, other = (on_plane(one, normal) for one in entities)
        near, far = (self._distance(head + relations - end) for end in (tail, other))
        loss = functional.relu(self.margin + near - far).mean()
        loss = loss + off_plane(relations, normal)
        loss = loss + self.reg_loss(*entities, relations)
        return self.kg_weight * loss, self._alignment(torch.cat(ends))

    def _alignment(self, entity: Tensor) -> Tensor:
        """Return how far items are from their entities, the mean over those of `entity` that are items."""
        is_item = entity < self.n_items
        item = torch.where(is_item, entity, 0)
        apart = self._distance(self.item_embedding(item) - self.entity_embedding(item))
        return self.align_weight * (apart * is_item).sum() / is_item.sum().clamp(min=1)

    def item_vectors(self) -> Tensor:
        """Return the vector of each item: its own, and that of its entity."""
        return self.item_embedding.weight + self.entity_embedding.weight[: self.n_items]

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the score of each row, `[rows]`."""
        return self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID])


def on_plane(vectors: Tensor, normal: Tensor) -> Tensor:
    """Return vectors less what of them is along a normal, which counts as being of length 1.

    >>> on_plane(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])).tolist()
    [3.0, 0.0]
    """
    normal = functional.normalize(normal, dim=-1)
    return vectors - (vectors * normal).sum(dim=-1, keepdim=True) * normal


def off_plane(translations: Tensor, normals: Tensor) -> Tensor:
    """Return the mean square of the cosines of translations with the normals of their planes."""
    cosines = functional.cosine_similarity(at_least_float32(translations), at_least_float32(normals), dim=-1)
    return cosines.square().mean()
