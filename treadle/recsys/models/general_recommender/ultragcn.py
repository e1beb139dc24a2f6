"""UltraGCN."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import GeneralRecommender
from treadle.recsys.models.bases.fitted import common_users
from treadle.recsys.models.bases.neighbours import strongest
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.histories import Histories
from treadle.recsys.models.layers.functional import all_dots, dot, embedding_rows
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import number, whole


class UltraGCN(GeneralRecommender):
    """Embeddings that are pulled to where endless rounds over the graph would bring them, without any round.

    Mao, Zhu, Xiao, Lu, Wang and He, "UltraGCN: ultra simplification of graph convolutional networks for
    recommendation", 2021. A pair of user and item weighs `w1 + w2 * b`, a negative `w3 + w4 * b`, where b is
    `sqrt(d_u + 1) / d_u / sqrt(d_i + 1)` by their degrees; a third loss has the user like the `ii_neighbor_num` items
    that are used most together with the positive, an item being, as in the authors' program, among its own. It is meant
    for hundreds of negatives: `train_neg_sample_args: {distribution: uniform, sample_num: 300}`.

    The loss is the sum over a batch, as its penalty, `gamma / 2` times the squares of all embeddings, is meant for; a
    batch that is not full has its share of the penalty.
    """

    input_type = InputType.PAIRWISE
    loss_reduction = "sum"

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        size = whole(config, "embedding_size")
        self.pull = number(config, "w1"), number(config, "w2")
        self.push = number(config, "w3"), number(config, "w4")
        self.negative_weight, self.item_weight = number(config, "negative_weight"), number(config, "lambda")
        self.gamma = number(config, "gamma")
        # A batch is measured in negatives.
        sampled = (config["train_neg_sample_args"] or {}).get("sample_num", 1)
        self.positives = max(whole(config, "train_batch_size") // sampled, 1)
        self.known = _Weights(dataset, whole(config, "ii_neighbor_num"))
        self.user_embedding = nn.Embedding(self.n_users, size)
        self.item_embedding = nn.Embedding(self.n_items, size)
        for table in (self.user_embedding, self.item_embedding):
            nn.init.normal_(table.weight, std=number(config, "initial_weight"))

    def forward(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of users and items."""
        return embedding_rows(self.user_embedding, user), embedding_rows(self.item_embedding, item)

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the losses of pairs and of items that are used together, and the penalty."""
        user, positive = interaction[self.USER_ID], interaction[self.ITEM_ID]
        negative = interaction[self.NEG_ITEM_ID].view(len(user), -1)
        neighbours = self.known.neighbours.index_select(0, positive)
        users, positives = self.forward(user, positive)
        pulled = self._weight(self.pull, user, positive) * _distance(dot(users, positives))
        unlike = dot(users, embedding_rows(self.item_embedding, negative))
        pushed = (self._weight(self.push, user.unsqueeze(1), negative) * _distance(-unlike)).mean(dim=1)
        near = dot(users, embedding_rows(self.item_embedding, neighbours))
        together = (self.known.strengths.index_select(0, positive) * _distance(near)).sum(dim=1)
        loss: Tensor = (pulled + self.negative_weight * pushed + self.item_weight * together).sum()
        penalised: Tensor = loss + self.gamma / 2 * len(user) / self.positives * self._squares()
        return penalised

    def _weight(self, parts: tuple[float, float], user: Tensor, item: Tensor) -> Tensor:
        weight: Tensor = parts[0] + parts[1] * self.known.of_users[user] * self.known.of_items[item]
        return weight

    def _squares(self) -> Tensor:
        return self.user_embedding.weight.square().sum() + self.item_embedding.weight.square().sum()

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the score of each row, `[rows]`."""
        return dot(*self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID]))

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items, `[rows * n_items]`."""
        return all_dots(self.user_embedding(interaction[self.USER_ID]), self.item_embedding.weight)


def _distance(score: Tensor) -> Tensor:
    """Return how far a score is from being certain: `-log(sigmoid(score))`."""
    return -functional.logsigmoid(at_least_float32(score))


class _Weights(Constants):
    """What the graph says about pairs.

    Attributes:
        of_users, of_items: The two factors of the weight of a pair.
        neighbours: The items used most together with each item, `[n_items, k]`.
        strengths: How much each of them weighs; 0 where there are fewer.
    """

    of_users: Tensor
    of_items: Tensor
    neighbours: Tensor
    strengths: Tensor

    def __init__(self, dataset: Dataset, k: int) -> None:
        histories = Histories.of(dataset)
        common = common_users(histories)
        of_users = _leaving(histories.counts.float())
        of_items = _arriving(torch.bincount(histories.items, minlength=dataset.item_num).float())
        totals = torch.zeros(dataset.item_num).index_add_(0, _rows_of(common), common.values())
        leaving, arriving = _leaving(totals), _arriving(totals)
        found = strongest(common, k, lambda i, j, both: both * leaving[i] * arriving[j], itself=True)
        neighbours, strengths = _filled(*found, dataset.item_num, k)
        super().__init__(of_users=of_users, of_items=of_items, neighbours=neighbours, strengths=strengths)


def _leaving(degrees: Tensor) -> Tensor:
    return (degrees + 1).sqrt() / degrees.clamp(min=1)


def _arriving(degrees: Tensor) -> Tensor:
    return (degrees + 1).rsqrt()


def _rows_of(matrix: Tensor) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(matrix)), matrix.crow_indices().diff())


def _filled(rows: Tensor, columns: Tensor, values: Tensor, number: int, k: int) -> tuple[Tensor, Tensor]:
    """Return columns and values as tables of k to a row, filled up with the padding and 0."""
    counts = torch.bincount(rows, minlength=number)
    places = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
    neighbours, strengths = torch.zeros(number, k, dtype=torch.int64), torch.zeros(number, k)
    neighbours[rows, places], strengths[rows, places] = columns, values
    return neighbours, strengths
