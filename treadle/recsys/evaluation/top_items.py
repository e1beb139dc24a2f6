"""The k best items of each row of scores, where equal scores always come in the same order."""

import math

import torch
from torch import Tensor

SMALLEST_GROUP, LARGEST_GROUP = 32, 256


def top_items(scores: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the places of the k highest scores, best first, their scores, and how many rows have a nan.

    Of equal scores the lower place comes first, on every device, also where the tie is at the end of the list:
    `torch.topk` takes any of them. Exact in two stages: the k best places lie in the k groups of neighbouring places
    with the highest maxima, of equal maxima the first. (Were a place of the list in none of these, each of the k groups
    would have a place before it.) Only group maxima and the members of k groups are looked at in order, a few per
    cent of all scores.

    Args:
        scores: float32 or float64, `[rows, places]`.
        k: At most the number of places.
    """
    group = _group_size(scores.shape[1], k)
    if scores.shape[1] < 2 * group * k:
        places = _in_order(scores, k)
        return places, scores.gather(1, places), scores.isnan().any(dim=1).sum()
    maxima = _group_maxima(scores, group)
    # In the order of places, so that the place within the candidates orders ties as the place itself does.
    groups = _in_order(maxima, k).sort(dim=1).values
    places = (groups.unsqueeze(2) * group + torch.arange(group, device=scores.device)).flatten(1)
    last = scores.shape[1] - 1
    candidates = scores.gather(1, places.clamp(max=last)).masked_fill_(places > last, -torch.inf)
    chosen = _in_order(candidates, k)
    return places.gather(1, chosen), candidates.gather(1, chosen), maxima.isnan().any(dim=1).sum()


def _group_size(places: int, k: int) -> int:
    """Return the power of two near which the work of both stages is least."""
    best = 1 << max(0, round(math.log2(places / k) / 2))
    return min(max(best, SMALLEST_GROUP), LARGEST_GROUP)


def _group_maxima(scores: Tensor, group: int) -> Tensor:
    whole = scores.shape[1] // group * group
    maxima = scores[:, :whole].view(len(scores), -1, group).amax(dim=2)
    if whole == scores.shape[1]:
        return maxima
    return torch.cat([maxima, scores[:, whole:].amax(dim=1, keepdim=True)], dim=1)


def _in_order(scores: Tensor, k: int) -> Tensor:
    """Return the places of the k highest scores; of equal ones the lower place comes first."""
    if scores.dtype == torch.float64:
        return scores.argsort(dim=1, descending=True, stable=True)[:, :k]
    # As integers the bits of floats are in order but for the sign; the place below them makes every key a single one.
    bits = (scores + 0.0).view(torch.int32)
    bits.bitwise_xor_((bits >> 31).bitwise_and_(0x7FFFFFFF))
    keys = bits.long().bitwise_left_shift_(32).sub_(torch.arange(scores.shape[1], device=scores.device))
    return keys.topk(k, dim=1).indices
