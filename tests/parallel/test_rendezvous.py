"""A group of processes that was started again finds its own members, and none of those that were killed."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from treadle.parallel.rendezvous import CALL, own_part

LIMIT = timedelta(seconds=30)


@pytest.fixture
def store() -> Any:
    """A store that outlives the groups which meet in it, as torchrun's does."""
    return dist.HashStore()  # type: ignore[attr-defined]


def meet(store: Any, ranks: list[int], size: int) -> list[Any]:
    """Let these ranks come, the first one first, and return the part that each one got, in rank order."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        parts = {rank: threads.submit(own_part, store, rank, size, LIMIT) for rank in ranks}
        return [parts[rank].result() for rank in sorted(ranks)]


def test_ranks_that_meet_share_a_part_of_the_store(store: Any) -> None:
    parts = meet(store, [0, 1, 2], 3)
    for rank, part in enumerate(parts):
        part.set(f"address_{rank}", str(rank))
    assert [part.get("address_2") for part in parts] == [b"2"] * 3


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_what_a_killed_group_left_behind_is_not_found_by_the_next(store: Any, order: list[int]) -> None:
    for part in meet(store, [0, 1], 2):
        part.set("address", "of the dead")
    first, second = meet(store, order, 2)
    assert not first.check(["address"])
    second.set("address", "of the living")
    assert first.get("address") == b"of the living"


def test_a_group_may_be_smaller_or_larger_than_the_one_before(store: Any) -> None:
    for size in (3, 2, 4):
        parts = meet(store, list(reversed(range(size))), size)
        assert not parts[-1].check(["here"])
        parts[0].set("here", "yes")
        assert [part.get("here") for part in parts] == [b"yes"] * size


def test_a_first_rank_that_died_before_it_was_answered_is_not_waited_for(store: Any) -> None:
    store.set(CALL, "a word of the dead")
    first, second = meet(store, [1, 0], 2)
    first.set("address", "of the living")
    assert second.get("address") == b"of the living"


def test_a_rank_that_nobody_answers_says_so(store: Any) -> None:
    store.set(CALL, "a word of the dead")
    with pytest.raises(TimeoutError, match=r"rank 0 did not answer rank 1 within 0:00:00\.100000; look into what it"):
        own_part(store, 1, 2, timedelta(seconds=0.1))
