"""Scores of all items for some users, and in how many users at a time."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.data.sampling.negative_samplers import PairScorer
from treadle.recsys.evaluation.inputs import OrderedPairs

# How many positives stand above how many negatives


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


# The k best items of each row of scores, where equal scores always come in the same order


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


Scorer = Callable[[Tensor], Tensor]
"""Takes some users and returns their scores of all item ids, `[users, num_items]`, in a tensor of its own."""

CPU_BYTES = 16 * 2**20
"""What a chunk of scores takes on the CPU: small enough to be warm in its caches."""
DEVICE_BYTES = 2**30
"""What it takes on a device; more gains nothing."""
BYTES_PER_SCORE = 8
"""A float32 score, and as much again for what a scorer makes on its way."""


def users_at_once(num_items: int, device: torch.device, memory: int | None = None) -> int:
    """Return how many users can be scored at a time within `memory` bytes.

    Args:
        num_items: How many scores a user has.
        device: Where they are; by default a GiB, or a quarter of what is free, on a GPU, 16 MiB on the CPU.
        memory: The bytes to use instead.
    """
    if memory is None:
        memory = CPU_BYTES
        if device.type == "cuda":
            memory = min(DEVICE_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
    return max(1, memory // (num_items * BYTES_PER_SCORE))


def scores_from_pairs(pair_scorer: PairScorer, num_items: int, *, pairs_at_once: int = 2**20) -> Scorer:
    """Return a scorer of all items made of one of pairs, for models that have nothing better.

    Args:
        pair_scorer: Takes users and items of one length and returns a score for each pair.
        num_items: How many item ids there are.
        pairs_at_once: How many pairs it is given at a time.
    """

    def score(users: Tensor) -> Tensor:
        items = torch.arange(num_items, device=users.device)
        step = max(1, pairs_at_once // num_items)
        parts = [
            pair_scorer(some.repeat_interleave(num_items), items.repeat(len(some))).view(len(some), num_items)
            for some in torch.split(users, step)
        ]
        return torch.cat(parts)

    return score


@contextmanager
def true_fp32(device: torch.device) -> Iterator[None]:
    """Multiply matrices in full float32 inside: TF32 and half precision change the order of items."""
    # By backend, for torch's one setting for all of them cannot be read where somebody has set one of them.
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    kept = [backend.fp32_precision for backend in backends]
    with torch.autocast(device.type, enabled=False):
        try:
            for backend in backends:
                backend.fp32_precision = "ieee"
            yield
        finally:
            for backend, precision in zip(backends, kept, strict=True):
                backend.fp32_precision = precision


def writable_scores(scores: Tensor, users: Tensor, num_items: int) -> Tensor:
    """Return the scores as float32 or float64 that may be written to, whatever the scorer returned.

    Raises:
        ConfigError: They do not have a column for each item, or are on another device.
    """
    if scores.device != users.device:
        raise ConfigError(f"the scorer returned scores on {scores.device} for users on {users.device}; move the model")
    if scores.shape != (len(users), num_items):
        raise ConfigError(
            f"the scorer returned the shape {tuple(scores.shape)} for {len(users)} users and {num_items} item ids; it "
            "has to return a score of each item for each user"
        )
    kind = scores.dtype if scores.dtype == torch.float64 else torch.float32
    # A part of a table, or a parameter, is still needed as it is.
    part = scores.untyped_storage().nbytes() != scores.numel() * scores.element_size()
    shared = part or scores.requires_grad
    if scores.dtype != kind:
        return scores.to(kind, memory_format=torch.contiguous_format)
    return scores.clone(memory_format=torch.contiguous_format) if shared else scores.contiguous()
