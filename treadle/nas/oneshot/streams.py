"""Two streams of batches, taken together or in turns."""

from typing import Any

from treadle.data import Batch, Stream


class Pairs:
    """Batches of two streams, side by side, as one stream; each keeps its own place.

    Args:
        train: The first of each pair.
        validation: The second of each pair.
    """

    in_memory = None
    padded = None

    def __init__(self, train: Stream, validation: Stream) -> None:
        self._train, self._validation = train, validation
        self.keep_last = False

    @property
    def drawn(self) -> int:
        """Pairs drawn in this epoch."""
        return self._train.drawn

    def has_next(self) -> bool:
        """Whether there is another pair."""
        return self._train.has_next() and self._validation.has_next()

    def window(self, size: int) -> list[Batch]:
        """Draw up to `size` pairs."""
        pairs: list[Any] = list(zip(self._train.window(size), self._validation.window(size), strict=False))
        return pairs

    def leave_small_on_host(self) -> None:
        """Give small batches as they are, to somebody who copies them to the device himself."""
        self._train.leave_small_on_host()
        self._validation.leave_small_on_host()


def begin_again(*streams: Stream) -> None:
    """Begin another pass over the streams that have ended."""
    for stream in streams:
        if not stream.has_next():
            stream.begin(stream.epoch + 1)


def longer_of(train: Stream, validation: Stream) -> Stream:
    """Return the stream that an epoch lasts as long as; the other begins again when it ends."""
    lengths = train.length, validation.length
    if lengths[0] is not None and lengths[1] is not None and lengths[1] > lengths[0]:
        return validation
    return train
