"""Small evaluations as tensors, the same as dictionaries for the oracle, and ways to draw them."""

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.recsys.evaluation.oracle import BY_USER, OF_CATALOGUE, Case
from treadle.recsys.data.sampling import UserItems
from treadle.recsys.evaluation import MetricPlan

EVERYTHING = [*BY_USER, *OF_CATALOGUE, "GAUC"]
"""Every metric of ranked lists."""


def items_of(own: list[list[int]], *, num_items: int, first_item: int = 1) -> UserItems:
    """Return the items of users 0, 1 and so on."""
    users = torch.tensor([user for user, items in enumerate(own) for _ in items], dtype=torch.int64)
    items = torch.tensor([item for items in own for item in items], dtype=torch.int64)
    return UserItems(users, items, num_users=len(own), num_items=num_items, first_item=first_item)


@dataclass(frozen=True)
class Situation:
    """What is known before an evaluation."""

    scores: Tensor
    positives: list[list[int]]
    seen: list[list[int]]
    num_items: int
    first_item: int
    item_counts: list[int]

    def plan(self, topk: list[int], **options: Any) -> MetricPlan:
        return MetricPlan(
            options.pop("metrics", EVERYTHING),
            topk,
            num_items=self.num_items,
            first_item=self.first_item,
            item_counts=torch.tensor(self.item_counts),
            **options,
        )

    def table(self, own: list[list[int]]) -> UserItems:
        return items_of(own, num_items=self.num_items, first_item=self.first_item)

    def scorer(self, users: Tensor) -> Tensor:
        return self.scores[users]

    def case(self, candidates: list[list[int]] | None = None, **options: Any) -> Case:
        """Return it for the oracle; `candidates` are all but the seen ones unless given."""
        if candidates is None:
            every = range(self.first_item, self.num_items)
            candidates = [
                [item for item in every if item not in seen or item in own]
                for seen, own in zip(self.seen, self.positives, strict=True)
            ]
        values = self.scores.tolist()
        scores = {user: {item: values[user][item] for item in own} for user, own in enumerate(candidates)}
        positives = dict(enumerate(map(list, self.positives)))
        return Case(scores, positives, self.num_items, self.first_item, self.item_counts, **options)


@st.composite
def situations(draw: Any, most_items: int = 9) -> Situation:
    """Draw a situation with many ties, users without positives, and users who have seen almost everything."""
    first = draw(st.integers(0, 1))
    num_items = draw(st.integers(first + 2, most_items))
    items = st.sampled_from(range(first, num_items))
    number = draw(st.integers(1, 6))
    several = st.lists(st.lists(items, max_size=num_items, unique=True), min_size=number, max_size=number)
    positives, seen = draw(several), draw(several)
    if not any(positives):
        positives[0] = [draw(items)]
    values = st.sampled_from([-1.5, -0.0, 0.0, 0.25, 0.5, 2.0])
    rows = draw(st.lists(st.lists(values, min_size=num_items, max_size=num_items), min_size=number, max_size=number))
    counts = draw(st.lists(st.integers(0, 9), min_size=num_items, max_size=num_items))
    return Situation(torch.tensor(rows), positives, seen, num_items, first, counts)
