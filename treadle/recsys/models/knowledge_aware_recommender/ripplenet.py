"""RippleNet."""

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
from treadle.recsys.models.layers.functional import dot, projected
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import choice, number, whole

NUMBERS = 1 << 22
"""How many numbers are held at a time where all items are scored."""
UPDATES = ("replace", "plus", "replace_transform", "plus_transform")


class RippleNet(KnowledgeRecommender):
    """What a user likes spreads over the graph in rings, and an item meets in each ring what is like it.

    Wang, Zhang, Wang, Zhao, Li, Xie and Guo, "RippleNet: propagating user preferences on the knowledge graph for
    recommender systems", 2018. For every user and ring `n_memory` triples are drawn once, by the seed. The loss is the
    cross-entropy of labels, of those that the data has or of sampled items, less `kg_weight` times how much the
    triples of the batch hold, and the penalty on squares. Rows of users who liked nothing do not count in it: their
    rings are padding and their labels all 0, which would teach the padding that such users never like anything.
    """

    input_type = InputType.POINTWISE
    batch_state = KGDataLoaderState.RS

    def __init__(self, config: Config, dataset: KnowledgeBasedDataset) -> None:
        super().__init__(config, dataset)
        self.LABEL = str(config["LABEL_FIELD"])
        self.embedding_size = whole(config, "embedding_size")
        self.n_hop, self.n_memory = whole(config, "n_hop"), whole(config, "n_memory")
        self.kg_weight, self.reg_weight = number(config, "kg_weight"), number(config, "reg_weight")
        self.item_update_mode = choice(config, "item_update_mode", UPDATES)
        self.using_all_hops = bool(config["using_all_hops"])
        self.entity_embedding = nn.Embedding(self.n_entities, self.embedding_size)
        self.relation_embedding = nn.Embedding(self.n_relations, self.embedding_size**2)
        if self.item_update_mode.endswith("transform"):
            self.transform_matrix = nn.Linear(self.embedding_size, self.embedding_size, bias=False)
        heads, relations, tails = (part.cpu() for part in dataset.triples())
        graph = Neighbours(heads, relations, tails, self.n_entities)
        users, items = (ids.cpu() for ids in dataset.positive_pairs())
        options = {"hops": self.n_hop, "size": self.n_memory, "seed": int(config["seed"])}
        liked_any = torch.bincount(users, minlength=self.n_users) > 0
        sets = graph.ripple_sets(users, items, self.n_users, **options)
        self.memory = Constants(**sets._asdict(), liked_any=liked_any)
        self.apply(xavier_normal_initialization)

    @property
    def _matrices(self) -> Tensor:
        return self.relation_embedding.weight.view(self.n_relations, self.embedding_size, self.embedding_size)

    def _ring(self, hop: int, user: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return heads, tails and relations of a ring, and `R h` of each triple, `[users, n_memory, size]`."""
        relations = self.memory.relations[hop, user]
        heads, tails = (self.entity_embedding(part[hop, user]) for part in (self.memory.heads, self.memory.tails))
        flat = projected(heads.flatten(0, 1), relations.reshape(-1), self._matrices.transpose(1, 2))
        return heads, tails, relations, flat.view_as(heads)

    def _answered(self, items: Tensor, memories: Tensor, tails: Tensor) -> Tensor:
        """Return what a ring answers to items, `[users, items, size]`.

        Args:
            items: `[users, items, size]`.
            memories: `R h` of the triples of the ring.
            tails: Their tails.
        """
        shares = functional.softmax(at_least_float32(torch.matmul(items, memories.transpose(1, 2))), dim=2)
        return torch.matmul(shares.to(tails.dtype), tails)

    def _updated(self, items: Tensor, answer: Tensor) -> Tensor:
        mixed = items + answer if self.item_update_mode.startswith("plus") else answer
        if not self.item_update_mode.endswith("transform"):
            return mixed
        turned: Tensor = self.transform_matrix(mixed)
        return turned

    def _met(self, items: Tensor, rings: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Tensor:
        """Return the scores of items for users, `[users, items]`."""
        answers = []
        for _, tails, _, memories in rings:
            answers.append(self._answered(items, memories, tails))
            items = self._updated(items, answers[-1])
        taste = torch.stack(answers).sum(dim=0) if self.using_all_hops else answers[-1]
        return at_least_float32(dot(items, taste))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return the logit of each pair."""
        rings = [self._ring(hop, user) for hop in range(self.n_hop)]
        return self._met(self.entity_embedding(item).unsqueeze(1), rings).squeeze(1)

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the cross-entropy of the labels, less what the triples hold, and the penalty."""
        user, item = interaction[self.USER_ID], interaction[self.ITEM_ID]
        rings = [self._ring(hop, user) for hop in range(self.n_hop)]
        logits = self._met(self.entity_embedding(item).unsqueeze(1), rings).squeeze(1)
        shares = self._shares(user, logits.dtype)
        labels = interaction[self.LABEL].to(logits.dtype)
        loss = functional.binary_cross_entropy_with_logits(logits, labels, weight=shares, reduction="sum")
        holds = torch.stack([self._holding(*ring[:3]) for ring in rings]).sum(dim=0)
        return loss - self.kg_weight * torch.sum(holds * shares) + self.reg_weight * self._penalty(rings, shares)

    def _shares(self, user: Tensor, dtype: torch.dtype) -> Tensor:
        """Return how much of the loss each row is: the same for all but users who liked nothing, who have none."""
        counted: Tensor = self.memory.liked_any[user].to(dtype)
        return counted / counted.sum().clamp(min=1)

    def _holding(self, heads: Tensor, tails: Tensor, relations: Tensor) -> Tensor:
        """Return the mean over the triples of each row of `sigmoid(h R t)`."""
        ends = projected(tails.flatten(0, 1), relations.reshape(-1), self._matrices.transpose(1, 2))
        return at_least_float32(dot(heads.flatten(0, 1), ends)).sigmoid().view(relations.shape).mean(dim=1)

    def _penalty(self, rings: list[tuple[Tensor, Tensor, Tensor, Tensor]], shares: Tensor) -> Tensor:
        """Return the mean over rows of the squares of their rings, and the squares of the transformation."""
        squares = self._matrices.square().sum(dim=(1, 2))
        of_entities = [end.square().sum(dim=(1, 2)) for heads, tails, _, _ in rings for end in (heads, tails)]
        of_relations = [squares[relations].sum(dim=1) for _, _, relations, _ in rings]
        mean = torch.sum(torch.stack([*of_entities, *of_relations]).sum(dim=0) * shares)
        if not self.item_update_mode.endswith("transform"):
            return mean
        return mean + self.transform_matrix.weight.square().sum()

    def item_vectors(self) -> Tensor:
        """Return the vector of each item: that of its entity."""
        return self.entity_embedding.weight[: self.n_items]

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the probability of each row, `[rows]`."""
        return self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID]).sigmoid()

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the probabilities of all items, `[rows * n_items]`."""
        at_once = max(1, NUMBERS // (self.n_items * max(self.n_memory, self.embedding_size)))
        return torch.cat([self._all_met(some) for some in interaction[self.USER_ID].split(at_once)]).sigmoid().view(-1)

    def _all_met(self, user: Tensor) -> Tensor:
        items = self.entity_embedding.weight[: self.n_items].expand(len(user), -1, -1)
        return self._met(items, [self._ring(hop, user) for hop in range(self.n_hop)])
