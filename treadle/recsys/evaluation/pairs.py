"""How many positives stand above how many negatives."""

import torch
from torch import Tensor

from treadle.recsys.evaluation.inputs import OrderedPairs

CPU_NUMBERS, DEVICE_NUMBERS = 2**18, 2**26
"""How many scores are compared at a time: as many as a cache of the CPU holds, more on a device."""


def pairs_in_order(
    scores: Tensor, places: Tensor, positives: Tensor, hidden: Tensor, *, weight: str = "impressions"
) -> OrderedPairs:
    """Return the number of pairs of a positive and a negative that `scores` has in order; a tie is half a pair.

    Each positive is compared with all places of its row. That counts positives against each other too, themselves
    included, which is half the square of their number whatever their order, and it counts what is hidden; both are
    taken off.

    Args:
        scores: `[rows, places]`, -inf at places that are no candidates.
        places: Where the positives are in the flat scores, row by row.
        positives: How many each row has.
        hidden: How many places of each row are no candidates.
        weight: What users should weigh by.
    """
    limit = torch.finfo(scores.dtype).max
    # The difference of two infinite scores would be nan.
    finite = scores.clamp(-limit, limit)
    rows = torch.div(places, scores.shape[1], rounding_mode="floor")
    step = max(1, (CPU_NUMBERS if scores.device.type == "cpu" else DEVICE_NUMBERS) // scores.shape[1])
    blocks = zip(torch.split(places, step), torch.split(rows, step), strict=True)
    above = torch.cat([_above(finite, some, some_rows) for some, some_rows in blocks])
    lowest = (scores.view(-1)[places] == -torch.inf).double()
    won, unlikely = (
        torch.zeros_like(positives, dtype=torch.float64).index_add_(0, rows, one) for one in (above, lowest)
    )
    # Everything is above what is hidden, but a positive with the score -inf is level with it.
    won -= hidden * (positives - unlikely / 2) + positives.double().square() / 2
    return OrderedPairs(won, positives, scores.shape[1] - hidden - positives, weight)


def _above(scores: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    """Return how many places of its row each positive is above, those with the same score by half.

    The signs of the differences add up to the places below less those above; float32 adds 2**24 of them exactly.
    """
    signs = torch.sub(scores.view(-1)[places].unsqueeze(1), scores[rows]).sign_()
    width = scores.shape[1]
    total = signs.sum(dim=1, dtype=torch.float64 if width > 2**24 else None)
    return (total.double() + width) / 2
