"""Which items belong to which user: seen in training, held out for a test, drawn as candidates."""

from typing import Self

import torch
from torch import Tensor

from treadle.errors import DataError


class UserItems:
    """A set of items for each user, kept as sorted keys on one device.

    A key is `user * num_items + item`: whether a user has an item is one binary search, without a Python set. A user
    may as well be a row of a sequence, or anything else that has items.

    Args:
        users: The user of each pair, in any order.
        items: The item of each pair; a pair given twice counts once.
        num_users: How many user ids there are.
        num_items: How many item ids there are, padding included.
        first_item: The lowest id that is an item; those below are padding, which no user has, no sampler draws and
            no metric counts. The data sets of Treadle keep 0 for padding.

    Raises:
        DataError: The ids are no integers, or are out of range.

    >>> seen = UserItems(torch.tensor([1, 1, 2]), torch.tensor([3, 1, 2]), num_users=3, num_items=4)
    >>> seen.items.tolist(), seen.counts.tolist()
    ([1, 3, 2], [0, 2, 1])
    >>> seen.contains(torch.tensor([1, 2]), torch.tensor([3, 3])).tolist()
    [True, False]
    """

    def __init__(self, users: Tensor, items: Tensor, *, num_users: int, num_items: int, first_item: int = 1) -> None:
        if users.shape != items.shape or users.dim() != 1:
            raise DataError(
                f"pairs of users and items need two tensors of one length; these have the shapes {tuple(users.shape)} "
                f"and {tuple(items.shape)}"
            )
        _check_ids("user", users, 0, num_users)
        _check_ids("item", items, first_item, num_items)
        self._keep(torch.unique(users.long() * num_items + items.long()), num_users, num_items, first_item)

    def _keep(self, keys: Tensor, num_users: int, num_items: int, first_item: int) -> None:
        self.num_users, self.num_items, self.first_item = num_users, num_items, first_item
        self.keys = keys
        self.users = torch.div(keys, num_items, rounding_mode="floor")
        self.items = keys - self.users * num_items
        bounds = torch.arange(num_users + 1, device=keys.device)
        self.offsets = torch.searchsorted(self.users, bounds)
        self.counts = self.offsets.diff()

    @classmethod
    def only_itself(cls, num_items: int, *, first_item: int = 1, device: torch.device | str = "cpu") -> Self:
        """Return the set in which each item is a "user" who has seen just this item.

        A sampler over it, asked with the targets in the place of the users, draws anything but the target: what
        sequential models train against.
        """
        items = torch.arange(first_item, num_items, device=device)
        return cls(items, items, num_users=num_items, num_items=num_items, first_item=first_item)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def device(self) -> torch.device:
        """Where the keys are."""
        return self.keys.device

    @property
    def catalogue_size(self) -> int:
        """How many items there are, padding not counted."""
        return self.num_items - self.first_item

    def contains(self, users: Tensor, items: Tensor) -> Tensor:
        """Return whether each user has the item beside it; the shapes broadcast."""
        return is_member(self.keys, (users.long() * self.num_items + items.long()).contiguous())

    def select(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """Return the items of `users`, one after the other, each with the place of its user in `users`."""
        counts = self.counts[users]
        rows = torch.repeat_interleave(torch.arange(len(users), device=self.device), counts)
        starts = self.offsets[users] - (counts.cumsum(0) - counts)
        return rows, self.items[starts[rows] + torch.arange(len(rows), device=self.device)]

    def to(self, device: torch.device | str) -> Self:
        """Return the same sets on `device`."""
        return self if self.device == torch.device(device) else self._like(self.keys.to(device))

    def __or__(self, other: "UserItems") -> Self:
        self._check_alike(other)
        return self._like(torch.unique(torch.cat([self.keys, other.keys])))

    def __sub__(self, other: "UserItems") -> Self:
        self._check_alike(other)
        return self._like(self.keys[~is_member(other.keys, self.keys)])

    def _like(self, keys: Tensor) -> Self:
        made = type(self).__new__(type(self))
        made._keep(keys, self.num_users, self.num_items, self.first_item)
        return made

    def _check_alike(self, other: "UserItems") -> None:
        own = (self.num_users, self.num_items, self.first_item)
        theirs = (other.num_users, other.num_items, other.first_item)
        if own != theirs:
            raise DataError(
                "sets of items are joined where they number users and items alike; here (num_users, num_items, "
                f"first_item) is {own} in one and {theirs} in the other"
            )


def is_member(keys: Tensor, queries: Tensor) -> Tensor:
    """Return whether each query stands in `keys`, which are sorted."""
    if not len(keys):
        return torch.zeros_like(queries, dtype=torch.bool)
    places = torch.searchsorted(keys, queries).clamp_(max=len(keys) - 1)
    return keys[places] == queries


def seen_by_phase(phases: dict[str, UserItems]) -> dict[str, UserItems]:
    """Return, for each phase, the items of this phase and of all phases before it.

    This is what a negative of the phase may not be. Training excludes what was seen in training; validation what was
    seen in training and validation; the test all three.

    Args:
        phases: The interactions of each phase, in the order of time: `train`, `valid`, `test`.
    """
    seen: dict[str, UserItems] = {}
    for name, own in phases.items():
        before = list(seen.values())[-1:]
        seen[name] = before[0] | own if before else own
    return seen


def _check_ids(what: str, ids: Tensor, lowest: int, number: int) -> None:
    if ids.dtype.is_floating_point or ids.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise DataError(f"{what} ids are integers; these are {ids.dtype}")
    if not len(ids):
        return
    least, most = int(ids.min()), int(ids.max())
    if least < lowest or most >= number:
        wrong = least if least < lowest else most
        below = f"; ids below {lowest} are padding" if 0 <= wrong < lowest else ""
        raise DataError(f"{what} id {wrong} is out of range: ids go from {lowest} to {number - 1}{below}")
