"""Where a recorded step reads its window from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from treadle.data.batch import rebuilt
from treadle.data.in_memory_batches import PlacedBatches

Signature = tuple[Any, ...]
CONSTANTS = (bool, int, float, str, type(None))
"""What a batch may hold besides tensors; a recording is for the values that it was made with."""


class Inputs(Protocol):
    """The memory that a recorded step reads its window from."""

    def window(self) -> list[Any]:
        """Return the window in that memory, for the step to be recorded with."""

    def values_of(self, window: list[Any]) -> list[Any] | None:
        """Return what is to be written for `window`; None if it is not of the kind that was recorded."""

    def write(self, values: list[Any]) -> None:
        """Bring the values of a window into that memory; the host does not wait."""

    def advance(self) -> None:
        """Move on to where the next window is expected; this is a part of the recorded step."""

    def rewind(self) -> None:
        """Go back to the window that the step was recorded with."""


class CopiedInputs:
    """Tensors that those of each window are copied into.

    Args:
        window: The window to record with.
    """

    def __init__(self, window: list[Any]) -> None:
        self._signature = window_signature(window)
        self._plain = _plain_kinds(window)
        self._window = [like(batch) for batch in window]
        self._tensors = [leaf for leaf in leaves(self._window) if isinstance(leaf, Tensor)]

    def window(self) -> list[Any]:
        """Return the window of these tensors."""
        return self._window

    def values_of(self, window: list[Any]) -> list[Tensor] | None:
        """Return the tensors of `window` in order; None if shapes, types or containers differ."""
        if self._plain is None:
            fits = window_signature(window) == self._signature
            return [leaf for leaf in leaves(window) if isinstance(leaf, Tensor)] if fits else None
        if len(window) != len(self._plain):
            return None
        # A shortcut for the most common kind: this check is a good part of what a small step costs the host.
        found: list[Tensor] = []
        for batch, (kind, shapes) in zip(window, self._plain, strict=True):
            if type(batch) is not kind or len(batch) != len(shapes):
                return None
            for leaf, (shape, dtype) in zip(batch, shapes, strict=True):
                if type(leaf) is not Tensor or leaf.shape != shape or leaf.dtype is not dtype:
                    return None
            found += batch
        return found

    def write(self, values: list[Tensor]) -> None:
        """Copy the tensors of a window."""
        torch._foreach_copy_(self._tensors, values, non_blocking=True)

    def advance(self) -> None:
        """Do nothing: every window is written."""

    def rewind(self) -> None:
        """Do nothing: what was written stays."""


class PlacedWindow(list[Any]):
    """A window of data in memory that is not gathered yet: for each batch its place in the order, and its size.

    Args:
        batches: Where they are gathered from.
        places: The places and sizes.

    Attributes:
        batches: See above.
        made: The batches, once they are gathered after all.
    """

    made: Sequence[Any] = ()

    def __init__(self, batches: PlacedBatches, places: list[tuple[int, int]]) -> None:
        super().__init__(places)
        self.batches = batches

    def gathered(self) -> list[Any]:
        """Return the window as batches."""
        made = [self.batches.batch_of(*place) for place in self]
        self.made = made
        return made


class GatheredInputs:
    """Places in the order of data on the device; the step gathers its batches itself.

    Windows usually follow one another, so the step itself moves on to the next; the host writes places only where a
    window is not the next one.

    Args:
        window: The window to record with.
    """

    def __init__(self, window: PlacedWindow) -> None:
        self._batches = window.batches
        self._sizes = [size for _, size in window]
        self._total = sum(self._sizes)
        self._address = window.batches.address
        self._first = [place for place, _ in window]
        self._expected: list[int] | None = None
        self._cursors = torch.tensor(self._first, device=window.batches.device)

    def window(self) -> list[Any]:
        """Gather the batches at the cursors."""
        sizes = enumerate(self._sizes)
        return [self._batches.batch_at(self._cursors[number], size) for number, size in sizes]

    def values_of(self, window: list[Any]) -> list[int] | None:
        """Return the places of the batches; None if their sizes differ, or the order is kept elsewhere."""
        moved = not isinstance(window, PlacedWindow) or window.batches.address != self._address
        return None if moved or [size for _, size in window] != self._sizes else [place for place, _ in window]

    def write(self, values: list[int]) -> None:
        """Set the cursors, if they do not stand there already."""
        if values != self._expected:
            self._set(values)
        self._expected = [value + self._total for value in values]

    def advance(self) -> None:
        """Move the cursors on by the window that was read."""
        self._cursors.add_(self._total)

    def rewind(self) -> None:
        """Set the cursors to where they were in the recording."""
        self._set(self._first)
        self._expected = None

    def _set(self, places: list[int]) -> None:
        if len(places) == 1:
            self._cursors.fill_(places[0])
            return
        for number, place in enumerate(places):
            self._cursors[number].fill_(place)


def inputs_for(window: list[Any]) -> Inputs:
    """Return where a step reads windows like `window` from."""
    return GatheredInputs(window) if isinstance(window, PlacedWindow) else CopiedInputs(window)


def leaves(value: Any) -> Iterator[Any]:
    """Yield what is in the tuples, lists and mappings of a batch, in order."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def like(value: Any) -> Any:
    """Return a copy of a batch whose tensors are new ones with the same contents."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return rebuilt(value, {key: like(item) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(like, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(like, value))
    return value


def window_signature(window: list[Any]) -> Signature:
    """Return what must be the same for a recorded step to fit: shapes, types, containers, and what is no tensor."""
    if isinstance(window, PlacedWindow):
        return ("gathered", window.batches.address, *(size for _, size in window))
    return (*map(_mark, leaves(window)), *map(_structure, window))


def _mark(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return (leaf.shape, leaf.dtype)
    # What is neither a tensor nor one of these is refused, and may have no hash.
    return leaf if isinstance(leaf, CONSTANTS) else type(leaf)


def _plain_kinds(window: list[Any]) -> list[tuple[Any, list[tuple[Any, Any]]]] | None:
    """Return what each batch is like, if all are plain tuples or lists of tensors; else None."""
    kinds: list[tuple[Any, list[tuple[Any, Any]]]] = []
    for batch in window:
        if type(batch) not in (list, tuple) or not all(type(leaf) is Tensor for leaf in batch):
            return None
        kinds.append((type(batch), [(leaf.shape, leaf.dtype) for leaf in batch]))
    return kinds


def _structure(value: Any) -> Any:
    if isinstance(value, Mapping):
        return (type(value), *((key, _structure(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return (type(value), *map(_structure, value))
    return None
