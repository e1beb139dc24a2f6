"""What can be told of a stream of Hugging Face's `datasets` without having the package."""

import logging
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import numpy as np

logger = logging.getLogger(__name__)


def loses_samples(dataset: Any) -> bool:
    """Whether a stream that is resumed from its own state lacks samples.

    A buffer that shuffles is not in the state: it is filled anew, and what was in it is lost. So may be a part of a
    table that a function over batches was given.
    """
    for part in _parts(dataset):
        of_tables = getattr(getattr(part, "formatting", None), "is_table", False)
        if hasattr(part, "buffer_size") or (of_tables and getattr(part, "batched", False)):
            return True
    return False


def shuffle_mark(dataset: Any) -> str | None:
    """Return a mark of the generators that a stream is shuffled with; None if there are none.

    Made without a seed, a stream has other ones in every process, and another order.
    """
    generators = [getattr(part, "generator", None) for part in _parts(dataset)]
    states = [repr(one.bit_generator.state) for one in generators if isinstance(one, np.random.Generator)]
    return f"{crc32(repr(states).encode()):08x}" if states else None


class ShuffleCheck:
    """Says, once, that a stream goes on in another order than the one it was saved in.

    Args:
        dataset: The stream.
        name: What to call it.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        self._dataset, self._name = dataset, name
        self._told = False

    def state_dict(self) -> dict[str, str]:
        """Return the mark of the order; nothing where the stream is not shuffled."""
        mark = shuffle_mark(self._dataset)
        return {} if mark is None else {"shuffle": mark}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compare the order with that of `state`."""
        if self._told or state.get("shuffle") in (None, shuffle_mark(self._dataset)):
            return
        self._told = True
        logger.warning(
            "the %s data is shuffled with another seed than when the run was saved, so it goes on in another order; "
            "give shuffle() a seed",
            self._name,
        )


def _parts(dataset: Any) -> Iterator[Any]:
    """Yield the steps that make the samples, the last one first."""
    left = [getattr(dataset, "_ex_iterable", None)]
    while left:
        part = left.pop()
        if part is not None:
            yield part
            left += [getattr(part, "ex_iterable", None), *(getattr(part, "ex_iterables", None) or ())]
