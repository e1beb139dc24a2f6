"""Scores of all items for some users, and in how many users at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.sampling.hard_negatives import PairScorer

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


def own_scores(scores: Tensor, users: Tensor, num_items: int) -> Tensor:
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
