"""Sources that can only be read from their start, one batch after the other."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from treadle.data import workers
from treadle.data.batches import Batch
from treadle.data.random_state import OwnGenerators, RandomState


def opened_aside(source: Any) -> Iterator[Batch]:
    """Begin a source without moving the generators: torch's loader draws a seed each time, also after a resume."""
    generators = RandomState(cuda=False)
    before = generators.state_dict()
    batches = workers.begin(source)
    generators.load_state_dict(before)
    return batches


def is_read_out(batches: Any) -> bool:
    """Whether torch's loader knows that the batch it gave was the last: a short one, which no other follows."""
    return bool(getattr(getattr(batches, "_dataset_fetcher", None), "ended", False))


def with_own_randomness(begin: Callable[[], Iterator[Batch]], seed: int) -> Iterator[Batch]:
    """Read what `begin` opens with generators of its own: read again it gives the same, whoever else draws."""
    own = OwnGenerators(seed)
    with own:
        batches = begin()
    while True:
        with own:
            batch = next(batches, _END)
        if batch is _END:
            return
        yield batch


_END = object()


class Repeated(NamedTuple):
    """A batch of another rank, drawn to stay in step and not to be counted."""

    batch: Batch


def every_nth(batches: Iterator[Batch], rank: int, size: int, evaluation: bool) -> Iterator[Batch]:
    """Give each rank its batch of every group of `size`; in training a rank without one repeats the first."""
    while group := list(islice(batches, size)):
        if rank < len(group):
            yield group[rank]
        elif not evaluation:
            yield Repeated(group[0])
