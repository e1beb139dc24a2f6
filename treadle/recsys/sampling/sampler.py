"""What every negative sampler does: number its draws, refuse users without negatives, hand out items."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from treadle.errors import ConfigError, DataError
from treadle.recsys.sampling.counter_random import COLUMN_BITS, random_bits, row_counters
from treadle.recsys.sampling.user_items import UserItems

NAMED = 5
"""How many users an error message names before it only counts."""


class NegativeSampler(ABC):
    """Draws items that a user has not seen.

    What is drawn for a row depends on the seed, the row's position and the row's user, and on nothing else: not on
    the batch it is in, on the device, or on what was drawn before. So a run that resumes needs no replay; the negatives
    of a whole epoch can be drawn at once and sliced; and the ranks of a run, each with the positions of its own rows,
    draw what one process would.

    No draw is rejected. Among the items that a user has not seen the chosen one is found by binary search, so a user
    who has seen all items but one gets that one, at the same cost as anybody else.

    Args:
        seen: What a user's negatives may not be.
        users: Whom negatives will be drawn for; by default anybody.

    Raises:
        DataError: A user has seen every item that could be drawn.
    """

    seen: UserItems
    _spent: Tensor | None = None

    @abstractmethod
    def draw(self, users: Tensor, bits: Tensor) -> Tensor:
        """Return the item that each random number of 63 bits stands for, for the user beside it."""

    @abstractmethod
    def weights(self) -> Tensor:
        """Return how likely each item is to be drawn, in proportion; an integer for each id, 0 for padding."""

    def sample(self, users: Tensor, count: int, *, seed: int | Tensor, positions: Tensor | None = None) -> Tensor:
        """Return `count` negatives for each user, as `[len(users), count]`, on the device of the ids.

        With more negatives the first ones stay what they were. The same negative can come twice in a row.

        Args:
            users: A user for each row.
            count: How many negatives a row gets.
            seed: Which negatives; take another one for every epoch. A 0-dimensional int64 tensor can be changed
                between the replays of a captured graph.
            positions: The place of each row in the epoch; by default 0, 1, 2 and so on.
        """
        if not 0 < count < 1 << COLUMN_BITS:
            raise ConfigError(f"count={count}: draw at least one negative, and fewer than {1 << COLUMN_BITS}, a row")
        self._check_drawable(users)
        places = torch.arange(len(users), device=users.device) if positions is None else positions
        columns = torch.arange(count, device=users.device)
        bits = random_bits(seed, row_counters(places.unsqueeze(1), columns))
        return self.draw(users.unsqueeze(1).expand(-1, count), bits)

    def _refuse_users_without_negatives(self, available: Tensor, users: Tensor | None) -> None:
        """Raise if one of `users`, or anybody, has nothing available."""
        spent = available <= 0
        self._spent = spent if bool(spent.any()) else None
        if self._spent is not None:
            chosen = torch.arange(len(spent), device=spent.device) if users is None else users.to(spent.device)
            self._refuse(torch.unique(chosen[spent[chosen]]))

    def _check_drawable(self, users: Tensor) -> None:
        # Only where the builder was told that spent users would not be asked for: it costs a look at the device.
        if self._spent is not None:
            self._refuse(torch.unique(users[self._spent[users]]))

    def _refuse(self, spent: Tensor) -> None:
        if len(spent):
            more = f" and {len(spent) - NAMED} more" if len(spent) > NAMED else ""
            raise DataError(
                f"users {spent[:NAMED].tolist()}{more} have no negative: they have seen every item that "
                f"{type(self).__name__} draws; {self.remedy}"
            )

    remedy = "leave them out, or name those that will be asked for with users="
