"""What each user has used, in a form that a device can read rows of without asking the host."""

import warnings

import torch
from torch import Tensor

from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.constants import Constants

# Sparse matrices of torch


def csr_matrix(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a matrix in CSR form, whose parts are known to be right and are not checked.

    >>> csr_matrix(torch.tensor([0, 1]), torch.tensor([1]), torch.tensor([5.0]), (1, 2)).to_dense().tolist()
    [[0.0, 5.0]]
    """
    with warnings.catch_warnings():
        # torch says once in each process that the form is new; what is used of it here is tested.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)


def unique_pairs(dataset: Dataset, value_field: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the users, items and values of all interactions, by user and item; of repeated pairs, the last.

    Args:
        dataset: The data for training.
        value_field: The field with the values; 1 without it.
    """
    users, items = (ids.cpu().long() for ids in dataset.user_item_pairs())
    values = torch.ones(len(users)) if value_field is None else dataset._pair_column(value_field).cpu().float()
    keys = users * dataset.item_num + items
    order = keys.sort(stable=True).indices
    keys = keys[order]
    last = torch.ones(len(keys), dtype=torch.bool)
    last[:-1] = keys[1:] != keys[:-1]
    kept = order[last & (items[order] > 0)]
    return users[kept], items[kept], values[kept]


class Histories(Constants):
    """The items of each user, one user after the other.

    Args:
        users, items: The pairs, without repetitions, sorted by user.
        n_users, n_items: How many ids there are, padding included.
        values: A number for each pair; 1 without it.
    """

    items: Tensor
    values: Tensor
    offsets: Tensor
    counts: Tensor

    def __init__(self, users: Tensor, items: Tensor, n_users: int, n_items: int, values: Tensor | None = None) -> None:
        counts = torch.bincount(users, minlength=n_users)
        super().__init__(
            items=items,
            values=torch.ones(len(items)) if values is None else values,
            counts=counts,
            offsets=counts.cumsum(0) - counts,
        )
        self.n_users, self.n_items = n_users, n_items
        self._ends: list[int] = counts.sort(descending=True).values.cumsum(0).tolist()
        self._binary = values is None

    @classmethod
    def of(cls, dataset: Dataset, value_field: str | None = None) -> "Histories":
        """Return the histories in the data for training; see `unique_pairs`."""
        users, items, values = unique_pairs(dataset, value_field)
        return cls(users, items, dataset.user_num, dataset.item_num, None if value_field is None else values)

    def rows(self, users: Tensor, *, distinct: bool = False) -> Tensor:
        """Return the history of each user as a row of all items, `[users, n_items]`.

        The host does not wait: how many items these users have it does not ask, for it knows how many they can have.

        Args:
            users: Which users.
            distinct: Whether nobody comes twice, which bounds the work more tightly.
        """
        number = len(users)
        pairs, owners, there = self._distinct_pairs(users) if distinct and number else self._padded_pairs(users)
        pairs = pairs.clamp(0, max(len(self.items) - 1, 0))
        # What is not there is written to the padding of a row, which is wiped out afterwards.
        cells = torch.where(there, owners * self.n_items + self.items[pairs], owners * self.n_items).reshape(-1)
        flat = self.values.new_zeros(number * self.n_items)
        if self._binary:
            flat.index_fill_(0, cells, 1.0)
        else:
            flat.scatter_(0, cells, self.values[pairs].reshape(-1))
        matrix = flat.view(number, self.n_items)
        matrix[:, 0] = 0
        return matrix

    def _padded_pairs(self, users: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return as many places of pairs for each user as the longest history has, their rows, and which are real."""
        steps = torch.arange(self._ends[0] if self._ends else 0, device=users.device)
        owners = torch.arange(len(users), device=users.device).unsqueeze(1).expand(-1, len(steps))
        return self.offsets[users].unsqueeze(1) + steps, owners, steps < self.counts[users].unsqueeze(1)

    def _distinct_pairs(self, users: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return as many places of pairs as this number of users can have, their rows, and which are real."""
        counts = self.counts[users]
        ends = counts.cumsum(0)
        places = torch.arange(self._ends[min(len(users), len(self._ends)) - 1], device=users.device)
        owners = torch.searchsorted(ends, places, right=True)
        there = owners < len(users)
        owners = owners.clamp(max=len(users) - 1)
        return (self.offsets[users] - ends + counts)[owners] + places, owners, there

    def whole(self) -> Tensor:
        """Return the histories of all users as a sparse matrix in CSR form."""
        starts = torch.cat([self.offsets, self.offsets[-1:] + self.counts[-1:]])
        return csr_matrix(starts, self.items, self.values, (self.n_users, self.n_items))

    def sparse_rows(self, users: Tensor) -> Tensor:
        """Return the history of each user as a row of a sparse matrix in CSR form; the host waits for its size."""
        starts, pairs = rows_of_csr(self.offsets, self.counts, users)
        return csr_matrix(starts, self.items[pairs], self.values[pairs], (len(users), self.n_items))


def rows_of_csr(offsets: Tensor, counts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return where some rows of a sparse matrix begin in a matrix of their own, and which values of it they have.

    Args:
        offsets: Where each row of the matrix begins.
        counts: How many values it has.
        rows: Which rows, in any order.
    """
    own = counts[rows]
    ends = own.cumsum(0)
    owners = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), own)
    values = (offsets[rows] - ends + own)[owners] + torch.arange(len(owners), device=rows.device)
    return torch.cat([ends.new_zeros(1), ends]), values
