"""Interactions as matrices: sparse ones, and padded ones with the history of each user or item."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, DataError
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.optional import scipy_sparse

FORMS = ("coo", "csr")


class InteractionMatrices:
    """What a data set can be turned into; a part of `Dataset`."""

    config: Any
    inter_feat: Interaction

    @property
    def user_num(self) -> int:
        """How many user ids there are, padding included."""
        raise NotImplementedError

    @property
    def item_num(self) -> int:
        """How many item ids there are, padding included."""
        raise NotImplementedError

    def user_item_pairs(self) -> tuple[Tensor, Tensor]:
        """Return the user and the item of every interaction."""
        raise NotImplementedError

    def _values(self, value_field: str | None) -> Tensor:
        """Return what `value_field` holds for every pair; ones without it."""
        users, _ = self.user_item_pairs()
        if value_field is None:
            return torch.ones(len(users))
        return self._pair_column(value_field)

    def _pair_column(self, field: str) -> Tensor:
        if field not in self.inter_feat:
            raise DataError(f"value_field={field!r} is no column of the interactions, {self.inter_feat.columns}")
        column: Tensor = self.inter_feat[field]
        return column

    def inter_matrix(self, form: str = "coo", value_field: str | None = None) -> Any:
        """Return the interactions as a sparse matrix of users and items.

        Args:
            form: "coo" or "csr".
            value_field: The field whose numbers stand in the matrix; 1 without it.

        Raises:
            ConfigError: There is no such form.
            DataError: There is no such field.
            MissingDependencyError: SciPy is not installed.
        """
        if form not in FORMS:
            raise ConfigError(f"form={form!r} does not exist; there are {list(FORMS)}")
        users, items = (ids.cpu().numpy() for ids in self.user_item_pairs())
        values = self._values(value_field).cpu().numpy()
        shape = (self.user_num, self.item_num)
        matrix = scipy_sparse().coo_matrix((values, (users, items)), shape=shape)
        return matrix if form == "coo" else matrix.tocsr()

    def history_item_matrix(
        self, value_field: str | None = None, max_history_len: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the items of each user: ids and values, padded with 0 to `[users, longest]`, and how many there are.

        Args:
            value_field: The field that gives the values; 1 without it.
            max_history_len: The most items of a user; of more, some are chosen by the seed.
        """
        users, items = self.user_item_pairs()
        return self._history(users, items, self.user_num, value_field, max_history_len)

    def history_user_matrix(
        self, value_field: str | None = None, max_history_len: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the users of each item, in the form of `history_item_matrix`."""
        users, items = self.user_item_pairs()
        return self._history(items, users, self.item_num, value_field, max_history_len)

    def _history(
        self, rows: Tensor, columns: Tensor, number: int, value_field: str | None, most: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        owners, others, values = (part.cpu().numpy() for part in (rows, columns, self._values(value_field)))
        counts = np.bincount(owners, minlength=number)
        width = int(counts.max(initial=0))
        if most is not None and most < width:
            generator = torch.Generator().manual_seed(fold_seed(self.config["seed"], "history"))
            mixed = torch.randperm(len(owners), generator=generator).numpy()
            owners, others, values, width = owners[mixed], others[mixed], values[mixed], most
        order = np.argsort(owners, kind="stable")
        position = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        order, position = order[position < width], position[position < width]
        ids, numbers = np.zeros((number, width), np.int64), np.zeros((number, width), np.float32)
        ids[owners[order], position] = others[order]
        numbers[owners[order], position] = values[order]
        lengths = np.minimum(counts, width)
        return torch.from_numpy(ids), torch.from_numpy(numbers), torch.from_numpy(lengths.astype(np.int64))
