"""Saving while training goes on: a copy into warm host memory, then a thread that writes."""

import threading
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from treadle.checkpoint.format.tree import split
from treadle.checkpoint.store import CheckpointStore
from treadle.errors import CheckpointError
from treadle.files.storage import LocalStorage


class Staging:
    """Host copies of tensors in buffers that are allocated once: fresh memory would cost more than the copy."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copy `tensors` into the buffers and return those; they hold until the next call."""
        buffers = {name: self._buffer(name, tensor) for name, tensor in tensors.items()}
        self._buffers = buffers
        targets, sources = list(buffers.values()), list(tensors.values())
        if targets:
            # Into pinned memory all copies are under way at once; one that waits for each would stop hundreds of times.
            # Elsewhere, on MPS for one, a copy that is not waited for would be read before it is there.
            at_once = all(tensor.is_cuda or tensor.is_cpu for tensor in sources)
            torch._foreach_copy_(targets, sources, non_blocking=at_once)
        for device in {tensor.device for tensor in sources if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return buffers

    def _buffer(self, name: str, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            pin = tensor.device.type == "cuda"
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pin)
        return buffer


class Saver:
    """Writes checkpoints into a store, in the background if its policy says so.

    Args:
        store: Where they go.
        attempt: A word that all ranks share and no earlier run used.
        on_failure: Called from the writing thread when a checkpoint could not be written.
        frozen: Says where in memory the tensors lie that nothing trains.
    """

    def __init__(
        self,
        store: CheckpointStore,
        attempt: str,
        on_failure: Callable[[], None],
        frozen: Callable[[], Collection[int]] = frozenset,
    ) -> None:
        wait_for_writer(store)
        self.store = store
        self._attempt = attempt
        self._on_failure, self._frozen = on_failure, frozen
        self._saves = 0
        self._staging = Staging()
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None

    def save(self, step: int, state: Any, facts: dict[str, Any], *, after: threading.Thread | None = None) -> None:
        """Take a copy of `state` and have it written; blocks for the copy, and for a write still under way.

        Args:
            step: The step it is of.
            state: The state, or a function that returns it.
            facts: What the manifest says besides.
            after: A thread that writes a file which `state` counts on: the checkpoint is written when it has ended.

        Raises:
            CheckpointError: The state cannot be saved, or this or the previous checkpoint could not be written.
        """
        # Counted before anything can fail: a rank that fails must not be a save behind the others ever after.
        self._saves += 1
        self.wait()
        try:
            structure, tensors = split(state() if callable(state) else state)
        except CheckpointError:
            self.store.pass_over(step, self._attempt, self._saves)
            raise
        places = self._frozen()
        frozen = {name for name, tensor in tensors.items() if tensor.data_ptr() in places}
        staged = self._staging.copy(tensors)
        arguments = (step, structure, staged, facts, self._attempt, self._saves, frozen)
        if not self.store.policy.asynchronous:
            self._write_after(after, *arguments)
            return
        # No daemon: a process that ends while one is inside a library is aborted.
        self._thread = threading.Thread(
            target=self._write, args=(after, *arguments), name="treadle-checkpoint", daemon=False
        )
        _writers[_store_key(self.store)] = self._thread
        self._thread.start()

    def _write_after(self, first: threading.Thread | None, *arguments: Any) -> None:
        if first is not None:
            first.join()
        self.store.write(*arguments)

    def _write(self, *arguments: Any) -> None:
        try:
            self._write_after(*arguments)
        except CheckpointError as error:
            self._error = error
            self._on_failure()
        except Exception as error:
            self._error = CheckpointError(f"writing a checkpoint failed: {error!r}")
            self._error.__cause__ = error
            self._on_failure()

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            CheckpointError: What was being written could not be.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def writer(self) -> threading.Thread | None:
        """Return the thread that may still be writing; None if nothing is being written."""
        return self._thread

    def abandon(self, patience: float) -> None:
        """Wait for other ranks no longer than this: a run that failed on one of them must not be held up by it."""
        self.store.abandon(patience)

    def check(self) -> None:
        """Raise the error of a checkpoint that could not be written, once.

        Raises:
            CheckpointError: There is one.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error


_writers: dict[str, threading.Thread] = {}
"""The last thread of this process that wrote into a place; a run that was interrupted twice does not wait for it."""


def wait_for_writer(store: CheckpointStore) -> None:
    """Wait for a checkpoint that an earlier run of this process is still writing into the same place."""
    writer = _writers.pop(_store_key(store), None)
    if writer is not None:
        writer.join()


def _store_key(store: CheckpointStore) -> str:
    storage = store.storage
    return str(storage.folder.absolute()) if isinstance(storage, LocalStorage) else storage.url
