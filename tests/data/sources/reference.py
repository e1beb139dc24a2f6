"""The global order of the samples of sources, written out number by number, with nothing of what it is compared with.

`listed` gives what a run must see, in whatever processes and however often it is killed.
"""

from functools import cache
from hashlib import blake2b
from math import floor
from typing import Any

from treadle.data.seeds import fold_seed
from treadle.data.sources import HuggingFaceStream, IndexedSource, Mixture, Parquet, TarShards

WORD = 2**64
BLOCK_OF_MIXTURE = 10_000
BLOCK_OF_TAR = 256


def listed(source: IndexedSource, seed: int, epoch: int) -> list[int]:
    """Return the indices of a source in the order of an epoch of a run with this seed."""
    return indices(source, fold_seed(seed, 0), epoch, 0)


def indices(source: Any, seed: int, epoch: int, passed: int) -> list[int]:
    turn = epoch + 2**32 * passed
    if isinstance(source, Mixture):
        return of_mixture(source, seed, epoch, passed)
    if isinstance(source, Parquet) and source.window is not None:
        return by_blocks([int(size) for size in source.sizes], source.window, seed, turn)
    if isinstance(source, TarShards) and source.window is not None:
        blocks = []
        for size in source.sizes:
            blocks += [BLOCK_OF_TAR] * (size // BLOCK_OF_TAR) + [size % BLOCK_OF_TAR] * (size % BLOCK_OF_TAR > 0)
        return by_blocks(blocks, source.window, seed, turn)
    return shuffled(len(source), "samples", seed, turn)


@cache
def shuffled(length: int, *key: object) -> list[int]:
    """Return a permutation of the numbers below `length`."""
    half = 1
    while 4**half < length:
        half += 1
    digest = blake2b(repr(key).encode(), digest_size=48).digest()
    keys = [int.from_bytes(digest[place : place + 8], "little") for place in range(0, 48, 8)]
    found = []
    for value in range(length):
        while True:
            left, right = divmod(value, 2**half)
            for one in keys:
                left, right = right, left ^ mixed((right + one) % WORD) % 2**half
            value = left * 2**half + right
            if value < length:
                break
        found.append(value)
    return found


def mixed(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB % WORD
    return value ^ value >> 31


def by_blocks(sizes: list[int], window: int, seed: int, turn: int) -> list[int]:
    samples, first = [], 0
    for size in sizes:
        samples.append(list(range(first, first + size)))
        first += size
    order = shuffled(len(sizes), "blocks", seed, turn)
    found: list[int] = []
    for number, begin in enumerate(range(0, len(order), window)):
        together = [sample for block in order[begin : begin + window] for sample in samples[block]]
        found += [together[place] for place in shuffled(len(together), "window", seed, turn, number)]
    return found


def of_mixture(mixture: Mixture, seed: int, epoch: int, passed: int) -> list[int]:
    sources = list(mixture.sources.values())
    shares = mixture.shares
    count = mixture.epoch_length
    slots_of: dict[int, list[int]] = {}
    passes: dict[tuple[int, int], list[int]] = {}
    found = []
    for draw in range(epoch * count, epoch * count + count):
        block, within = divmod(draw, BLOCK_OF_MIXTURE)
        if block not in slots_of:
            slots_of[block] = shuffled(BLOCK_OF_MIXTURE, "mixture", seed, passed, block)
        slot, which = slots_of[block][within], 0
        while slot >= shares[which]:
            slot -= shares[which]
            which += 1
        whole, place = divmod(block * shares[which] + slot, mixture.lengths[which])
        if (which, whole) not in passes:
            own = fold_seed(seed, "source", which, passed)
            passes[which, whole] = indices(sources[which], own, whole, 0)
        found.append(sum(map(len, sources[:which])) + passes[which, whole][place])
    return found


def streamed(source: Any, seed: int, epoch: int) -> list[int]:
    """Return the numbers of the samples of a streamed source, whose `number`s stand in their order in it."""
    return of_stream(source, fold_seed(seed, 2, epoch), epoch)


def of_stream(source: Any, seed: int, epoch: int) -> list[int]:
    if isinstance(source, HuggingFaceStream):
        # From the second epoch on `datasets` itself changes the order of the shards.
        source.dataset.set_epoch(epoch)
        numbers = [int(row["number"]) for row in source.dataset]
        blocks = [numbers[place : place + source.buffer] for place in range(0, len(numbers), source.buffer)]
        return [
            block[place]
            for number, block in enumerate(blocks)
            for place in shuffled(len(block), "buffer", seed, number)
        ]
    parts = list(source.sources.values())
    left: list[list[int]] = [[] for _ in parts]
    passed = [-1 for _ in parts]
    found = []
    for draw in range(source.length):
        block, within = divmod(draw, BLOCK_OF_MIXTURE)
        slot, which = shuffled_at(within, BLOCK_OF_MIXTURE, "mixture", seed, block), 0
        while slot >= source.shares[which]:
            slot -= source.shares[which]
            which += 1
        if not left[which]:
            passed[which] += 1
            own = fold_seed(fold_seed(seed, "source", which), passed[which])
            part = parts[which]
            if isinstance(part, IndexedSource):
                left[which] = [int(part[index][1]) for index in indices(part, own, 0, 0)]
            else:
                left[which] = of_stream(part, own, epoch)
        found.append(left[which].pop(0))
    return found


def shuffled_at(place: int, length: int, *key: object) -> int:
    return shuffled(length, *key)[place]


def expected_shares(weights: list[float]) -> list[int]:
    """Return the largest remainders, for weights that need no rounding."""
    return [floor(BLOCK_OF_MIXTURE * weight / sum(weights) + 1e-9) for weight in weights]
