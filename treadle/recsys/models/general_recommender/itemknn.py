"""Nearest neighbours of items."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from treadle.recsys.evaluation.top_items import top_items
from treadle.recsys.models.fitted_recommender import FittedRecommender
from treadle.recsys.models.item_similarity import common_users, similarity_scores
from treadle.recsys.models.settings import number, whole
from treadle.recsys.models.sparse import csr_matrix

if TYPE_CHECKING:
    from treadle.recsys.config import Config
    from treadle.recsys.dataset import Dataset

CELLS = 1 << 24
"""How many similarities are looked through together."""


class ItemKNN(FittedRecommender):
    """Scores an item by its similarity to what the user has, looking at the `k` items most like it.

    Deshpande and Karypis, "Item-based top-N recommendation algorithms", 2004. The similarity is the cosine of the sets
    of users; `shrink`, added to its divisor, makes less of items that few have used.

    Attributes:
        starts, items, similarities: For each item, those whose neighbour it is and how similar they are, in CSR form.
    """

    starts: Tensor
    items: Tensor
    similarities: Tensor

    def __init__(self, config: "Config", dataset: "Dataset") -> None:
        super().__init__(config, dataset)
        self.k, self.shrink = whole(config, "k"), number(config, "shrink")
        self.keep("starts", "items", "similarities")

    def fit(self, dataset: "Dataset") -> None:
        """Find the neighbours of each item; of items that are equally similar, those with the lower ids."""
        common = common_users(self.refresh_histories(dataset))
        sizes = torch.bincount(self.histories.items.cpu(), minlength=self.n_items).float().sqrt()
        step = max(1, CELLS // self.n_items)
        found = [self._neighbours(common, sizes, first, first + step) for first in range(0, self.n_items, step)]
        items, neighbours, values = (torch.cat(parts) for parts in zip(*found, strict=True))
        order = neighbours.sort(stable=True).indices
        counts = torch.bincount(neighbours, minlength=self.n_items)
        device = self.histories.items.device
        self.starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(device)
        self.items, self.similarities = items[order].to(device), values[order].to(device)

    def _neighbours(self, common: Tensor, sizes: Tensor, first: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return items, a neighbour of each, and how similar they are, for the items from `first` on."""
        last = min(last, self.n_items)
        starts = common.crow_indices()[first : last + 1]
        inside = slice(int(starts[0]), int(starts[-1]))
        columns, counts = common.col_indices()[inside], common.values()[inside]
        rows = torch.repeat_interleave(torch.arange(last - first), starts.diff())
        values = counts / (sizes[rows + first] * sizes[columns] + self.shrink)
        block = torch.zeros(last - first, self.n_items)
        block[rows, columns] = values.masked_fill(columns == rows + first, 0)
        neighbours, similarities, _ = top_items(block, min(self.k, self.n_items))
        items = torch.arange(first, last).unsqueeze(1).expand_as(neighbours)
        there = similarities > 0
        return items[there], neighbours[there], similarities[there]

    def scores(self, users: Tensor) -> Tensor:
        """Return the sums of similarities."""
        starts, items, values = (self.result(name) for name in ("starts", "items", "similarities"))
        similarity = csr_matrix(starts, items, values, (self.n_items, self.n_items))
        return similarity_scores(self.histories, users, similarity)
