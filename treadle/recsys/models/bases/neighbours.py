"""Models that look at the few items, or users, that are nearest to one."""

from collections.abc import Callable

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
SIMILARITIES: dict[str, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = {
    "cosine": lambda both, one, other, shrink: both / (one.sqrt() * other.sqrt() + shrink),
    "jaccard": lambda both, one, other, shrink: both / (one + other - both + shrink),
    "dice": lambda both, one, other, shrink: 2 * both / (one + other + shrink),
}
"""How similar two sets are, by how many they have in common and each has, and what is added to the divisor."""


def strongest(
    matrix: Tensor, k: int, weigh: Callable[[Tensor, Tensor, Tensor], Tensor], *, itself: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the k largest entries of each row that are above 0: their rows, columns and values, row after row.

    Of entries that are equally large, those of the first columns.

    Args:
        matrix: Square and sparse, in CSR form.
        k: How many of each row.
        weigh: What becomes of an entry, by its row, column and value.
        itself: Whether the diagonal counts.
    """
    size = len(matrix)
    step = max(1, CELLS // size)
    found = [_strongest_of(matrix, k, weigh, itself, slice(first, first + step)) for first in range(0, size, step)]
    rows, columns, values = (torch.cat(parts) for parts in zip(*found, strict=True))
    return rows, columns, values


def _strongest_of(
    matrix: Tensor, k: int, weigh: Callable[[Tensor, Tensor, Tensor], Tensor], itself: bool, part: slice
) -> tuple[Tensor, Tensor, Tensor]:
    size = len(matrix)
    first, last = part.start, min(part.stop, size)
    starts = matrix.crow_indices()[first : last + 1]
    inside = slice(int(starts[0]), int(starts[-1]))
    columns, values = matrix.col_indices()[inside], matrix.values()[inside]
    rows = torch.repeat_interleave(torch.arange(last - first), starts.diff())
    weights = weigh(rows + first, columns, values)
    block = torch.zeros(last - first, size)
    block[rows, columns] = weights if itself else weights.masked_fill(columns == rows + first, 0)
    neighbours, strengths, _ = top_items(block, min(k, size))
    own = torch.arange(first, last).unsqueeze(1).expand_as(neighbours)
    there = strengths > 0
    return own[there], neighbours[there], strengths[there]


def csr_parts(rows: Tensor, columns: Tensor, values: Tensor, n_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return where the rows of a sparse matrix start, and its columns and values row by row.

    >>> [part.tolist() for part in csr_parts(torch.tensor([1, 0]), torch.tensor([0, 2]), torch.tensor([5.0, 7.0]), 2)]
    [[0, 1, 2], [2, 0], [7.0, 5.0]]
    """
    order = rows.sort(stable=True).indices
    counts = torch.bincount(rows, minlength=n_rows)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), columns[order], values[order]


class NeighbourRecommender(FittedRecommender):
    """Scores an item by its similarity to what the user has, or by who else has it and how similar they are.

    Attributes:
        of_users_only: What it says to somebody who asks for similar items, where it knows users.
        starts, others, similarities: For each item, those whose neighbour it is, and how similar they are, in CSR form;
            for each user, their neighbours.
    """

    of_users_only = ""
    starts: Tensor
    others: Tensor
    similarities: Tensor

    def __init__(self, config: Config, dataset: Dataset, *, by_user: bool) -> None:
        super().__init__(config, dataset)
        self.k, self.shrink = whole(config, "k"), number(config, "shrink")
        self.similarity = choice(config, "similarity", tuple(SIMILARITIES))
        self.by_user = by_user
        self.number = self.n_users if self.by_user else self.n_items
        self.keep("starts", "others", "similarities")

    def fit(self, dataset: Dataset) -> None:
        """Find the neighbours of each item, or user; of those that are equally similar, the ones with the lower ids."""
        histories = self.refresh_histories(dataset)
        common = common_items(histories) if self.by_user else common_users(histories)
        sizes = self._counts(histories).cpu().float()
        similar = SIMILARITIES[self.similarity]
        own, neighbours, values = strongest(
            common, self.k, lambda one, other, both: similar(both, sizes[one], sizes[other], self.shrink)
        )
        rows, columns = (own, neighbours) if self.by_user else (neighbours, own)
        device = self.histories.items.device
        self.starts, self.others, self.similarities = (
            part.to(device) for part in csr_parts(rows, columns, values, self.number)
        )

    def _counts(self, histories: Histories) -> Tensor:
        return histories.counts if self.by_user else torch.bincount(histories.items, minlength=self.n_items)

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
            raise ConfigError(self.of_users_only)
        columns = functional.one_hot(items, self.n_items).to(self.similarities.dtype)
        return torch.mm(self._similarity(), columns.T).T
