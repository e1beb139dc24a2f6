"""The items of a list of users, laid out so that any stretch of the list is a slice."""

from collections.abc import Sequence

import torch
from torch import Tensor

from treadle.errors import DataError
from treadle.parallel import Processes
from treadle.recsys.evaluation.groups import Groups
from treadle.recsys.sampling.user_items import UserItems


class RowItems:
    """The items of `users`, one user after the other; where each begins is known on the host.

    Attributes:
        rows: The place in `users` of each item's user.
        items: The items, rising for each user.
        counts: How many items each user has.
    """

    def __init__(self, table: UserItems, users: Tensor) -> None:
        self.rows, self.items = table.select(users)
        self.counts = table.counts[users]
        self._num_items = table.num_items
        self.bounds: list[int] = [0, *self.counts.cumsum(0).tolist()]
        self._places = self.rows * table.num_items + self.items

    def stretch(self, start: int, stop: int) -> slice:
        """Return where the items of the users from `start` to `stop` are."""
        return slice(self.bounds[start], self.bounds[stop])

    def places(self, start: int, stop: int) -> Tensor:
        """Return where these items are in a flat matrix of the users' scores, `[stop - start, num_items]`; sorted."""
        return self._places[self.stretch(start, stop)] - start * self._num_items

    def by_group(self, groups: Groups) -> Tensor:
        """Return how many items of each group each user has, `[users, groups]`."""
        number = len(groups.labels)
        of = groups.of.to(self.items.device)[self.items]
        counts = torch.zeros(len(self.counts) * number, dtype=torch.int64, device=self.items.device)
        counts.index_add_(0, self.rows * number + of.clamp(min=0), (of >= 0).long())
        return counts.view(-1, number)


def users_to_rank(positives: UserItems, users: Tensor | None, processes: Processes | None) -> Tensor:
    """Return the users with a positive, of these the ones that this process takes: each user is one process's.

    Raises:
        DataError: No user has a positive.
    """
    there = positives.counts > 0
    chosen = there.nonzero().flatten() if users is None else torch.unique(users.to(positives.device))
    chosen = chosen[there[chosen]]
    if not len(chosen):
        raise DataError("no user has a positive to rank; the split is empty, or none of the chosen users is in it")
    return chosen if processes is None else chosen[processes.rank :: processes.size]


def check_groups(user_groups: Sequence[Groups], item_groups: Sequence[Groups], positives: UserItems) -> None:
    """Raise if a division does not have a group for each id, or if two have one name."""
    for groups, number, what in [
        *((one, positives.num_users, "user") for one in user_groups),
        *((one, positives.num_items, "item") for one in item_groups),
    ]:
        if groups.of.shape != (number,):
            raise DataError(
                f"groups {groups.name!r} have the shape {tuple(groups.of.shape)}; give the group of each of {number} "
                f"{what} ids"
            )
    names = [groups.name for groups in (*user_groups, *item_groups)]
    if len(set(names)) < len(names):
        raise DataError(f"groups are told apart by name, and these are called {names}; give each its own")
