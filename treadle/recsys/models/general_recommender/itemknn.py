"""Nearest neighbours of items, or of users."""

import torch
from torch import Tensor
from torch.nn import functional

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.evaluation.scoring import top_items
from treadle.recsys.models.bases.fitted import FittedRecommender, common_items, common_users, similarity_scores
from treadle.recsys.models.histories import Histories, csr_matrix, rows_of_csr
from treadle.recsys.models.settings import choice, number, whole

CELLS = 1 << 24
"""How many similarities are looked through together."""


class ItemKNN(FittedRecommender):
    """Scores an item by its similarity to what the user has, looking at the `k` items most like it.

    Deshpande and Karypis, "Item-based top-N recommendation algorithms", 2004. The similarity is the cosine of the sets
    of users; `shrink`, added to its divisor, makes less of items that few have used. With `knn_method: user` an item is
    scored by how similar those who have it are to the user, looking at the `k` users most like them.

    Attributes:
        starts, others, similarities: For each item, those whose neighbour it is, and how similar they are, in CSR form;
            for each user, their neighbours.
    """

    starts: Tensor
    others: Tensor
    similarities: Tensor

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.k, self.shrink = whole(config, "k"), number(config, "shrink")
        self.by_user = choice(config, "knn_method", ("item", "user")) == "user"
        self.number = self.n_users if self.by_user else self.n_items
        self.keep("starts", "others", "similarities")

    def fit(self, dataset: Dataset) -> None:
        """Find the neighbours of each item, or user; of those that are equally similar, the ones with the lower ids."""
        histories = self.refresh_histories(dataset)
        common = common_items(histories) if self.by_user else common_users(histories)
        sizes = self._counts(histories).cpu().float().sqrt()
        step = max(1, CELLS // self.number)
        found = [self._neighbours(common, sizes, first, first + step) for first in range(0, self.number, step)]
        own, neighbours, values = (torch.cat(parts) for parts in zip(*found, strict=True))
        rows, columns = (own, neighbours) if self.by_user else (neighbours, own)
        order = rows.sort(stable=True).indices
        counts = torch.bincount(rows, minlength=self.number)
        device = histories.items.device
        self.starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(device)
        self.others, self.similarities = columns[order].to(device), values[order].to(device)

    def _counts(self, histories: Histories) -> Tensor:
        return histories.counts if self.by_user else torch.bincount(histories.items, minlength=self.n_items)

    def _neighbours(self, common: Tensor, sizes: Tensor, first: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return items, a neighbour of each, and how similar they are, for the items from `first` on; or users."""
        last = min(last, self.number)
        starts = common.crow_indices()[first : last + 1]
        inside = slice(int(starts[0]), int(starts[-1]))
        columns, counts = common.col_indices()[inside], common.values()[inside]
        rows = torch.repeat_interleave(torch.arange(last - first), starts.diff())
        values = counts / (sizes[rows + first] * sizes[columns] + self.shrink)
        block = torch.zeros(last - first, self.number)
        block[rows, columns] = values.masked_fill(columns == rows + first, 0)
        neighbours, similarities, _ = top_items(block, min(self.k, self.number))
        own = torch.arange(first, last).unsqueeze(1).expand_as(neighbours)
        there = similarities > 0
        return own[there], neighbours[there], similarities[there]

    def _similarity(self) -> Tensor:
        """Return the similarities of items as a matrix, in which the column of an item has its neighbours."""
        starts, others, values = (self.result(name) for name in ("starts", "others", "similarities"))
        return csr_matrix(starts, others, values, (self.n_items, self.n_items))

    def scores(self, users: Tensor) -> Tensor:
        """Return the sums of similarities."""
        if not self.by_user:
            return similarity_scores(self.histories, users, self._similarity())
        starts, others, values = (self.result(name) for name in ("starts", "others", "similarities"))
        bounds, places = rows_of_csr(starts[:-1], starts.diff(), users)
        near = csr_matrix(bounds, others[places], values[places], (len(users), self.n_users))
        return torch.mm(near, self.histories.whole()).to_dense()

    def item_similarities(self, items: Tensor) -> Tensor:
        """Return how similar every item is to each of some items, 0 if it is none of its neighbours.

        Raises:
            ConfigError: The neighbours are those of users.
        """
        if self.by_user:
            raise ConfigError("ItemKNN with knn_method='user' knows how similar users are; for items, set it to 'item'")
        columns = functional.one_hot(items, self.n_items).to(self.similarities.dtype)
        return torch.mm(self._similarity(), columns.T).T
