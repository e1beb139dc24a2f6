"""Sets of items as sorted keys behave as Python's sets do, and refuse what they cannot number."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import DataError
from treadle.recsys.data.sampling import UserItems, seen_by_phase

USERS, ITEMS = 4, 6
pairs = st.lists(st.tuples(st.integers(0, USERS - 1), st.integers(1, ITEMS - 1)), max_size=30)


def table(rows: list[tuple[int, int]], **options: int) -> UserItems:
    users, items = torch.tensor(rows, dtype=torch.int64).reshape(-1, 2).unbind(1)
    return UserItems(users, items, **{"num_users": USERS, "num_items": ITEMS, **options})


def as_set(items: UserItems) -> set[tuple[int, int]]:
    return set(zip(items.users.tolist(), items.items.tolist(), strict=True))


@given(pairs, pairs)
def test_membership_union_and_difference_are_those_of_sets(
    one: list[tuple[int, int]], two: list[tuple[int, int]]
) -> None:
    first, second = table(one), table(two)
    assert as_set(first) == set(one)
    assert as_set(first | second) == set(one) | set(two)
    assert as_set(first - second) == set(one) - set(two)
    grid = torch.cartesian_prod(torch.arange(USERS), torch.arange(1, ITEMS))
    inside = first.contains(grid[:, 0], grid[:, 1]).tolist()
    assert inside == [tuple(pair) in set(one) for pair in grid.tolist()]
    assert first.counts.tolist() == [len({item for user, item in set(one) if user == own}) for own in range(USERS)]


@given(pairs, st.lists(st.integers(0, USERS - 1), max_size=6))
def test_items_of_chosen_users_come_in_the_order_of_the_users(rows: list[tuple[int, int]], users: list[int]) -> None:
    places, items = table(rows).select(torch.tensor(users, dtype=torch.int64))
    expected = [(place, item) for place, user in enumerate(users) for item in sorted({i for u, i in rows if u == user})]
    assert list(zip(places.tolist(), items.tolist(), strict=True)) == expected


def test_an_item_that_has_only_itself_excludes_only_itself() -> None:
    assert as_set(UserItems.only_itself(4)) == {(1, 1), (2, 2), (3, 3)}


def test_each_phase_excludes_what_was_seen_in_it_and_before() -> None:
    seen = seen_by_phase({"train": table([(0, 1)]), "valid": table([(0, 2)]), "test": table([(0, 3), (1, 1)])})
    assert as_set(seen["train"]) == {(0, 1)}
    assert as_set(seen["valid"]) == {(0, 1), (0, 2)}
    assert as_set(seen["test"]) == {(0, 1), (0, 2), (0, 3), (1, 1)}


@pytest.mark.parametrize(
    ("users", "items", "message"),
    [
        ([4], [1], "user id 4 is out of range: ids go from 0 to 3$"),
        ([-1], [1], "user id -1 is out of range: ids go from 0 to 3$"),
        ([0], [6], "item id 6 is out of range: ids go from 1 to 5$"),
        ([0], [0], "item id 0 is out of range: ids go from 1 to 5; ids below 1 are padding$"),
        ([0, 1], [1], r"need two tensors of one length; these have the shapes \(2,\) and \(1,\)$"),
    ],
)
def test_ids_that_cannot_be_are_named(users: list[int], items: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        UserItems(torch.tensor(users), torch.tensor(items), num_users=4, num_items=6)


def test_ids_that_are_no_integers_are_refused() -> None:
    with pytest.raises(DataError, match=r"^user ids are integers; these are torch.float32$"):
        UserItems(torch.zeros(1), torch.ones(1), num_users=4, num_items=6)


def test_sets_with_other_numbers_are_not_joined() -> None:
    with pytest.raises(DataError, match=r"is \(4, 6, 1\) in one and \(4, 7, 1\) in the other"):
        table([(0, 1)]) | table([(0, 1)], num_items=7)
