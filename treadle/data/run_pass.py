"""What a loop of the user's is handed: the batches of the run itself."""

from collections.abc import Generator, Iterator
from typing import Any
from weakref import ReferenceType, ref

from treadle.data.batch import Batch, size_of
from treadle.data.stream import Stream


class PassInProgress:
    """Whether a pass that was begun is still being gone through: neither at its end nor given up."""

    def __init__(self) -> None:
        self._pass: ReferenceType[Any] | None = None

    def note(self, batches: Generator[Any, None, None]) -> Generator[Any, None, None]:
        """Remember a pass; the generator is returned as it is."""
        self._pass = ref(batches)
        return batches

    def __bool__(self) -> bool:
        batches = None if self._pass is None else self._pass()
        return batches is not None and batches.gi_frame is not None


class RunPass:
    """The training data in a loop that a user wrote: iterating over it draws the run's own batches, which are counted.

    Iterating again, when that pass is over or was given up, is another pass of the run, in an order of its own. Inside
    a pass, it is a fresh one beside it. Whatever else is asked for, or set, is the stream's.

    Args:
        stream: The run's stream.
    """

    def __init__(self, stream: Stream) -> None:
        vars(self).update(stream=stream, _passes=0, _in_progress=PassInProgress())

    def __iter__(self) -> Iterator[Batch]:
        stream: Stream = self.stream
        if self._in_progress:
            return self._counted(iter(stream))
        if self._passes:
            stream.begin_again()
        vars(self)["_passes"] += 1
        in_progress: PassInProgress = self._in_progress
        return in_progress.note(stream.rest())

    def _counted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self.stream.samples += size_of(batch)
            yield batch

    def __len__(self) -> int:
        return len(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["stream"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.stream, name, value)
