"""SimpleX: a simple baseline with a cosine contrastive loss."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import GeneralRecommender
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.fields import pooled
from treadle.recsys.models.layers.functional import all_dots, dot
from treadle.recsys.models.loss import EmbLoss, at_least_float32
from treadle.recsys.models.settings import choice, number, share, whole


class SimpleX(GeneralRecommender):
    """A user is an embedding and what their items have in common; the cosine to an item is the score.

    Mao, Zhu, Wang, Dai, Dong, Xiao and He, "SimpleX: a simple and strong baseline for collaborative filtering", 2021.
    Positives are pulled up to a cosine of 1; of the negatives, those above a margin are pushed down. It is meant for
    many negatives: `train_neg_sample_args: {sample_num: 100}`.
    """

    input_type = InputType.PAIRWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        size = whole(config, "embedding_size")
        self.margin = number(config, "margin", -1)
        self.negative_weight = number(config, "negative_weight")
        self.gamma = number(config, "gamma")
        self.aggregator = choice(config, "aggregator", ("mean", "user_attention", "self_attention"))
        self.reg_weight = number(config, "reg_weight")
        self.require_pow = bool(config["require_pow"])
        items, _, _ = dataset.history_item_matrix(max_history_len=whole(config, "history_len"))
        self.known = Constants(history=items.cpu())
        self.user_emb = nn.Embedding(self.n_users, size)
        self.item_emb = nn.Embedding(self.n_items, size, padding_idx=0)
        self.UI_map = nn.Linear(size, size, bias=False)
        if self.aggregator != "mean":
            self.W_k = nn.Sequential(nn.Linear(size, size), nn.Tanh())
        if self.aggregator == "self_attention":
            self.W_q = nn.Linear(size, 1, bias=False)
        self.dropout = nn.Dropout(share(config, "dropout_prob"))
        self.reg_loss = EmbLoss()
        self.apply(xavier_normal_initialization)
        nn.init.zeros_(self.item_emb.weight[0].detach())

    def _mean_in_bags(self, history: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of the items of each user, and what has the norm of all these items together.

        Most of a step would be to put the items of all users beside each other, and their gradients. An item that came
        n times adds as much to a norm as one that is the root of n times as long.
        """
        table = self.item_emb.weight
        summed = functional.embedding_bag(history, table, mode="sum", padding_idx=0)
        mean = summed / (history != 0).sum(dim=1, keepdim=True).clamp(min=1)
        if history.numel() < self.n_items:
            return mean, self.item_emb(history)
        flat = history.reshape(-1)
        counts = table.new_zeros(self.n_items).index_add_(0, flat, table.new_ones(1).expand(len(flat)))
        counts[0] = 0
        return mean, table * counts.sqrt().unsqueeze(1)

    def _aggregated(self, users: Tensor, items: Tensor, inside: Tensor) -> Tensor:
        """Return one vector of the items of each user."""
        if self.aggregator == "mean":
            return pooled(items, inside)
        keys = self.W_k(items)
        scores = dot(users, keys) if self.aggregator == "user_attention" else self.W_q(keys).squeeze(-1)
        weights: Tensor = at_least_float32(scores).masked_fill(~inside, -1e9).softmax(dim=1) * inside
        together: Tensor = (items * weights.unsqueeze(-1)).sum(dim=1)
        return together

    def represented(self, user: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the vectors of users, not yet scaled to a length of 1, and the embeddings of them and their items.

        In place of the latter there may be others whose norm is the same, which is what they are for.
        """
        history: Tensor = self.known.history[user]
        users = self.user_emb(user)
        if self.aggregator == "mean" and history.device.type == "cpu":
            aggregated, items = self._mean_in_bags(history)
        else:
            items = self.item_emb(history)
            aggregated = self._aggregated(users, items, history != 0)
        common: Tensor = self.UI_map(aggregated)
        return self.gamma * users + (1 - self.gamma) * common, users, items

    def user_vectors(self) -> Tensor:
        """Return the vector of each user id; its cosine to that of an item is the score."""
        return self.represented(torch.arange(self.n_users, device=self.user_emb.weight.device))[0]

    def item_vectors(self) -> Tensor:
        """Return the vector of each item id."""
        return self.item_emb.weight

    def forward(self, user: Tensor, pos_item: Tensor, neg_item: Tensor) -> Tensor:
        """Return the contrastive loss, and the penalty on the embeddings."""
        vectors, users, items = self.represented(user)
        vectors = self.dropout(vectors)
        positives, negatives = self.item_emb(pos_item), self.item_emb(neg_item)
        pulled = functional.relu(1 - cosine(vectors, positives)).mean()
        pushed = functional.relu(cosine(vectors, negatives) - self.margin).mean()
        penalty: Tensor = self.reg_loss(users, positives, items, negatives, require_pow=self.require_pow)
        return pulled + self.negative_weight * pushed + self.reg_weight * penalty

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the contrastive loss, and the penalty on the embeddings."""
        return self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID], interaction[self.NEG_ITEM_ID])

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the cosine of each row, `[rows]`."""
        return cosine(self.represented(interaction[self.USER_ID])[0], self.item_emb(interaction[self.ITEM_ID]))

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the cosines of all items, `[rows * n_items]`."""
        users = functional.normalize(self.represented(interaction[self.USER_ID])[0], dim=-1)
        return all_dots(users, functional.normalize(self.item_emb.weight, dim=-1))


def cosine(users: Tensor, items: Tensor) -> Tensor:
    """Return the cosine of each user with the item beside it, or with several."""
    return dot(
        functional.normalize(at_least_float32(users), dim=-1), functional.normalize(at_least_float32(items), dim=-1)
    )
