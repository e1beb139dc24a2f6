"""Which rows are for training, which for validation and which for the test."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from treadle.recsys.data.tables.columns import within_runs

Array = np.ndarray[Any, Any]


class RowGroups(NamedTuple):
    """Rows brought together by user.

    Attributes:
        order: The rows, those of one user after those of another; within a user in their old order.
        counts: How many rows each user has.
        place: Of each row of `order`, the number of its user.
        position: Of each row of `order`, its place among the rows of its user.
    """

    order: Array
    counts: Array
    place: Array
    position: Array


def group_rows(users: Array | None, number: int) -> RowGroups:
    """Bring the rows of each user together; without users all rows are one group.

    >>> group_rows(np.array([7, 3, 7]), 3).order.tolist()
    [1, 0, 2]
    """
    if users is None:
        everything = np.arange(number)
        return RowGroups(everything, np.array([number]), np.zeros(number, np.int64), everything)
    order = np.argsort(users, kind="stable")
    counts = np.bincount(users)
    counts = counts[counts > 0]
    place = np.repeat(np.arange(len(counts)), counts)
    return RowGroups(order, counts, place, within_runs(counts))


def ordered_rows(number: int, *, times: Array | None, seed: int) -> Array:
    """Return the rows in the order of time, or in a random order if there are no times."""
    if times is not None:
        return np.argsort(times, kind="stable")
    # The seed as it is: RecBole, seeded alike, draws this order first, so that both divide a data set alike.
    generator = torch.Generator().manual_seed(seed)
    shuffled: Array = torch.randperm(number, generator=generator).numpy()
    return shuffled


def split_by_ratio(groups: RowGroups, ratios: Sequence[float]) -> list[Array]:
    """Return the rows of each part, by shares of each group.

    Every part but the first is rounded down, and the first gets the rest; but a part that would have less than one
    row of a group gets one, the last part first, as long as the first keeps one.

    >>> [part.tolist() for part in split_by_ratio(group_rows(None, 10), [0.8, 0.1, 0.1])]
    [[0, 1, 2, 3, 4, 5, 6, 7], [8], [9]]
    """
    total = sum(ratios)
    shares = [ratio / total for ratio in ratios]
    counts = np.stack([(share * groups.counts).astype(np.int64) for share in shares])
    counts[0] = groups.counts - counts[1:].sum(axis=0)
    for part in range(len(shares) - 1, 0, -1):
        short = (counts[0] > 1) & (shares[part] * groups.counts < 1) & (shares[part] > 0) & (groups.counts > 0)
        counts[part] += short
        counts[0] -= short
    bounds = np.cumsum(counts, axis=0)[:-1]
    part_of_row = (groups.position >= bounds[:, groups.place]).sum(axis=0)
    return [groups.order[part_of_row == part] for part in range(len(shares))]


def leave_one_out(groups: RowGroups, mode: str) -> list[Array]:
    """Return the rows of each part; the last rows of a group are held out, as long as one is left to train on.

    Args:
        groups: The rows by user.
        mode: `valid_and_test` holds out two, `valid_only` and `test_only` one.
    """
    held = 2 if mode == "valid_and_test" else 1
    from_end = groups.counts[groups.place] - 1 - groups.position
    out = (from_end < held) & (groups.position > 0)
    train, last = groups.order[~out], groups.order[out & (from_end == 0)]
    nothing = groups.order[:0]
    if mode == "valid_and_test":
        return [train, groups.order[out & (from_end == 1)], last]
    return [train, last, nothing] if mode == "valid_only" else [train, nothing, last]


def split_by_time(groups: RowGroups, times: Array, ratios: Sequence[float]) -> list[Array]:
    """Return the rows of each part: the test is what comes after one moment, the same for all users.

    The moment is the one after which the test's share of all rows comes. What is before it is divided between training
    and validation by shares of each group.

    Args:
        groups: The rows by user, each user's in the order of time.
        times: The time of each row.
        ratios: The shares of training, validation and test.
    """
    total = sum(ratios)
    shares = [ratio / total for ratio in ratios]
    moment = np.percentile(times, 100 * (1 - shares[-1]))
    early = times[groups.order] <= moment
    before = np.bincount(groups.place, weights=early, minlength=len(groups.counts)).astype(np.int64)
    trained = (before * (shares[0] / (1 - shares[2]))).astype(np.int64)
    # Within a user the early rows come first, so that the place among all rows is the place among the early ones.
    train = early & (groups.position < trained[groups.place])
    return [groups.order[train], groups.order[early & ~train], groups.order[~early]]


def split_at_moments(times: Array, moments: tuple[float, float]) -> list[Array]:
    """Return the rows of each part: before the first moment, from there to the second, and from there on.

    >>> [part.tolist() for part in split_at_moments(np.array([5, 1, 3, 4]), (3, 5))]
    [[1], [2, 3], [0]]
    """
    part_of_row = np.searchsorted(np.array(moments), times, side="right")
    return [np.flatnonzero(part_of_row == part) for part in range(3)]


def hold_out(ids: Array, ratios: Sequence[float], *, seed: int) -> list[Array]:
    """Return the rows of each part, where all rows of a user, or of an item, are in the same one.

    Args:
        ids: The user, or the item, of each row.
        ratios: The shares that the parts have of all users, or items.
        seed: Which of them are held out.
    """
    known, place = np.unique(ids, return_inverse=True)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(known), generator=generator).numpy()
    part_of_id = np.zeros(len(known), np.int64)
    for part, own in enumerate(split_by_ratio(group_rows(None, len(known)), ratios)):
        part_of_id[order[own]] = part
    return [np.flatnonzero(part_of_id[place] == part) for part in range(len(ratios))]
