"""The best unseen items of some users, as a table."""

import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.evaluation.full_ranking import hide
from treadle.recsys.evaluation.inputs import NO_ITEM
from treadle.recsys.evaluation.row_items import RowItems
from treadle.recsys.evaluation.scoring import Scorer, own_scores, true_fp32, users_at_once
from treadle.recsys.evaluation.top_items import top_items
from treadle.recsys.sampling.user_items import UserItems


@torch.no_grad()
def recommend_items(
    scorer: Scorer, users: Tensor, k: int, *, seen: UserItems, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the k best items of each user, best first, and their scores, both `[users, k]`.

    Where a user has fewer than k unseen items the rest is -1, with the score -inf. Of equal scores the lower item id
    comes first.

    Args:
        scorer: Takes users and returns scores `[users, num_items]`, which are written to.
        users: Whom to recommend to, in any order.
        k: How many items each gets.
        seen: What is not recommended to whom; give an empty one to recommend anything.
        chunk: How many users to score at a time; by default as many as fit the memory.

    Raises:
        ConfigError: There are no k items.
    """
    if not 0 < k <= seen.catalogue_size:
        raise ConfigError(f"k={k}: recommend at least one item, and at most the {seen.catalogue_size} there are")
    hidden = RowItems(seen, users)
    step = chunk or users_at_once(seen.num_items, seen.device)
    found = []
    with true_fp32(seen.device):
        for start in range(0, len(users), step):
            some = users[start : start + step]
            scores = own_scores(scorer(some), some, seen.num_items)
            hide(scores, hidden.places(start, start + len(some)), seen.first_item)
            items, values, _ = top_items(scores, k)
            found.append((items.masked_fill_(values == -torch.inf, NO_ITEM), values))
    if not found:
        return torch.empty(0, k, dtype=torch.int64, device=seen.device), torch.empty(0, k, device=seen.device)
    items, values = (torch.cat(parts) for parts in zip(*found, strict=True))
    return items, values
