"""Multi-task learning for knowledge graph enhanced recommendation."""

import torch
from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import KnowledgeRecommender
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.functional import all_dots, dot
from treadle.recsys.models.layers.mlp import MLPLayers
from treadle.recsys.models.loss import EmbLoss, at_least_float32
from treadle.recsys.models.settings import number, share, whole


class MKR(KnowledgeRecommender):
    """Two tasks, recommending items and completing triples, that share how items and entities cross.

    Wang, Zhang, Zhao, Li, Xie and Guo, "Multi-task feature learning for knowledge graph enhanced recommendation", 2019.
    Its trainer trains the first every epoch with `calculate_rs_loss`, and the second every `kge_interval` epochs with
    `calculate_kg_loss`. The first is the cross-entropy of labels, of those that the data has or of sampled items; the
    second is how badly the tail is foretold from head and relation, without negatives. The penalty of both is on half
    the squares of the embeddings of a batch.
    """

    input_type = InputType.POINTWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.LABEL = str(config["LABEL_FIELD"])
        self.embedding_size = size = whole(config, "embedding_size")
        self.low_layers, self.high_layers = whole(config, "low_layers_num"), whole(config, "high_layers_num")
        self.use_inner_product = bool(config["use_inner_product"])
        self.reg_weight = number(config, "reg_weight")
        self.require_pow = bool(config["require_pow"])
        dropout, active = share(config, "dropout_prob"), str(config["mlp_activation"])
        self.user_embeddings_lookup = nn.Embedding(self.n_users, size)
        self.item_embeddings_lookup = nn.Embedding(self.n_items, size)
        self.entity_embeddings_lookup = nn.Embedding(self.n_entities, size)
        self.relation_embeddings_lookup = nn.Embedding(self.n_relations, size)
        self.user_mlp = MLPLayers([size] * (self.low_layers + 1), dropout, active)
        self.tail_mlp = MLPLayers([size] * (self.low_layers + 1), dropout, active)
        self.cc_unit = nn.ModuleList([CrossCompressUnit(size) for _ in range(self.low_layers)])
        widths = [2 * size] * self.high_layers
        self.kge_mlp = MLPLayers(widths, dropout, active)
        self.kge_pred_mlp = MLPLayers([2 * size, size], dropout, "sigmoid")
        if not self.use_inner_product:
            self.rs_mlp = MLPLayers(widths, dropout, active)
            self.rs_pred_mlp = nn.Linear(2 * size, 1)
        self.bce_loss, self.l2_loss = nn.BCEWithLogitsLoss(), EmbLoss()
        self.apply(xavier_normal_initialization)

    def _crossed(self, item: Tensor, entity: Tensor) -> tuple[Tensor, Tensor]:
        """Return items and entities after they have gone through the units that both tasks share."""
        items, entities = self.item_embeddings_lookup(item), self.entity_embeddings_lookup(entity)
        for unit in self.cc_unit:
            items, entities = unit(items, entities)
        return items, entities

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return the logit of each pair."""
        users = self.user_mlp(self.user_embeddings_lookup(user))
        return self._met(users, self._crossed(item, item)[0])

    def _met(self, users: Tensor, items: Tensor) -> Tensor:
        if self.use_inner_product:
            return at_least_float32(dot(users, items))
        logits: Tensor = self.rs_pred_mlp(self.rs_mlp(torch.cat([users, items], dim=-1)))
        return at_least_float32(logits).squeeze(-1)

    def calculate_rs_loss(self, interaction: Interaction) -> Tensor:
        """Return the cross-entropy of the labels, and the penalty."""
        user, item = interaction[self.USER_ID], interaction[self.ITEM_ID]
        logits = self.forward(user, item)
        loss: Tensor = self.bce_loss(logits, interaction[self.LABEL].to(logits.dtype))
        of_item = [table(item) for table in (self.item_embeddings_lookup, self.entity_embeddings_lookup)]
        own = (self.user_embeddings_lookup(user), *of_item)
        penalty: Tensor = self.l2_loss(*own, require_pow=self.require_pow)
        return loss + self.reg_weight * penalty

    def calculate_kg_loss(self, interaction: Interaction) -> Tensor:
        """Return minus how near the foretold tails are to the real ones, and the penalty."""
        head, tail = interaction[self.HEAD_ENTITY_ID], interaction[self.TAIL_ENTITY_ID]
        # An entity that is no item has none to cross with but the padding.
        item = torch.where(head < self.n_items, head, 0)
        heads = self._crossed(item, head)[1]
        tails = self.tail_mlp(self.entity_embeddings_lookup(tail))
        relations = self.relation_embeddings_lookup(interaction[self.RELATION_ID])
        foretold = self.kge_pred_mlp(self.kge_mlp(torch.cat([heads, relations], dim=1)))
        near = at_least_float32(dot(tails, foretold)).sigmoid().mean()
        own = (*(self.entity_embeddings_lookup(end) for end in (head, tail)), relations)
        penalty: Tensor = self.l2_loss(*own, require_pow=self.require_pow)
        return -near + self.reg_weight * penalty

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the loss of the task of recommending, for trainers that know of one task only."""
        return self.calculate_rs_loss(interaction)

    def item_vectors(self) -> Tensor:
        """Return the vector of each item, crossed with its entity."""
        every = torch.arange(self.n_items, device=self.item_embeddings_lookup.weight.device)
        return self._crossed(every, every)[0]

    def user_vectors(self) -> Tensor:
        """Return the vector of each user, as items meet it."""
        vectors: Tensor = self.user_mlp(self.user_embeddings_lookup.weight)
        return vectors

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the probability of each row, `[rows]`."""
        return self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID]).sigmoid()

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the probabilities of all items, `[rows * n_items]`."""
        users = self.user_mlp(self.user_embeddings_lookup(interaction[self.USER_ID]))
        items = self.remembered(self.item_vectors)
        if self.use_inner_product:
            return at_least_float32(all_dots(users, items)).sigmoid()
        return torch.cat([self._met(user.expand(len(items), -1), items) for user in users]).sigmoid()


class CrossCompressUnit(nn.Module):
    """Crosses every number of an item with every number of an entity, and compresses the products to two vectors.

    The matrix of products is never made: `v e' w` is `v` times the number `e' w`.

    Args:
        dim: The size of both vectors.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc_vv, self.fc_ev = nn.Linear(dim, 1, bias=False), nn.Linear(dim, 1, bias=False)
        self.fc_ve, self.fc_ee = nn.Linear(dim, 1, bias=False), nn.Linear(dim, 1, bias=False)
        self.bias_v, self.bias_e = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, items: Tensor, entities: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new vectors of items and of entities."""
        new_items = items * self.fc_vv(entities) + entities * self.fc_ev(items) + self.bias_v
        new_entities = items * self.fc_ve(entities) + entities * self.fc_ee(items) + self.bias_e
        return new_items, new_entities
