"""The best combinations of parts that are ranked one by one."""

import heapq
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def best_combinations(lists: Sequence[Sequence[tuple[float, Item]]]) -> Iterator[tuple[float, tuple[Item, ...]]]:
    """Yield one item of each list together with the sum of their scores, the largest sum first.

    Args:
        lists: For each part its items with their scores, the best first.

    >>> pairs = best_combinations([[(3.0, "a"), (1.0, "b")], [(2.0, "x"), (1.5, "y")]])
    >>> [(score, "".join(items)) for score, items in pairs]
    [(5.0, 'ax'), (4.5, 'ay'), (3.0, 'bx'), (2.5, 'by')]
    """

    def entry(places: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        return (-sum(one[place][0] for one, place in zip(lists, places, strict=True)), places)

    if not all(lists):
        return
    start = (0,) * len(lists)
    queue, seen = [entry(start)], {start}
    while queue:
        score, places = heapq.heappop(queue)
        yield -score, tuple(one[place][1] for one, place in zip(lists, places, strict=True))
        for part, place in enumerate(places):
            after = (*places[:part], place + 1, *places[part + 1 :])
            if place + 1 < len(lists[part]) and after not in seen:
                seen.add(after)
                heapq.heappush(queue, entry(after))
