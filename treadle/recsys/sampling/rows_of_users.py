"""Rows of training data that are drawn by way of their users."""

import torch
from torch import Tensor


class RowsOfUsers:
    """Draws a user, all of them equally often, and then one of the user's rows.

    So a user with few interactions counts as much as one with many: as in a metric that is a mean over users, and as in
    the papers of BPR and LightGCN.

    Args:
        users: The user of each row, on the host.
    """

    def __init__(self, users: Tensor) -> None:
        self._rows = users.argsort(stable=True)
        counts = users.bincount()
        self._users = counts.nonzero().squeeze(1)
        self._counts = counts[self._users]
        self._starts = self._counts.cumsum(0) - self._counts

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return `count` rows."""
        drawn = torch.randint(len(self._users), (count,), generator=generator)
        # In double precision the product stays below the count, however many rows a user has.
        shares = torch.rand(count, generator=generator, dtype=torch.float64)
        within = (shares * self._counts[drawn]).long()
        return self._rows[self._starts[drawn] + within]
