"""Batches that are on their way to the device while the ones before are worked on."""

import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from treadle.data.batch import Batch, map_leaves, mover
from treadle.errors import ConfigError

# How long a run waits for its data


class Waiting:
    """Adds up how long the run waits for batches, as far as that costs it time.

    On the CPU that is all the time that fetching takes. A GPU works on while the host fetches, so there a wait counts
    only if the device had finished everything before the batch came; finding that out does not block.

    Args:
        device: What works on the batches.
    """

    def __init__(self, device: torch.device) -> None:
        self._seconds = 0.0
        self._began = 0.0
        self._given: Any = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __enter__(self) -> None:
        if self._given is not None:
            self._given.record()
        self._began = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        seconds = time.perf_counter() - self._began
        if self._given is None or self._given.query():
            self._seconds += seconds

    def take(self) -> float:
        """Return the seconds since this was last asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def what_to_try(source: Any, device: torch.device, *, ahead: bool = False) -> str:
    """Return what may keep a run from waiting for `source`, for the user to read.

    Args:
        source: Where the batches come from.
        device: Where they go.
        ahead: Whether they are sent there ahead of their use.
    """
    if device.type == "cuda" and not ahead:
        return (
            "it keeps its own place, as an iterator or by a state_dict, so its batches are not sent ahead, as those of "
            f"a map-style data set are; {what_to_try(source, device, ahead=True)}"
        )
    workers = getattr(source, "num_workers", None)
    fits = f"if it fits {'on the GPU' if device.type == 'cuda' else 'into memory'} as tensors, use an InMemoryDataset"
    if workers is None:
        return "its batches come from an iterable of your own; put the work that makes them into a DataLoader's workers"
    if workers == 0:
        return f"give its loader workers, such as num_workers=4; {fits}"
    return f"its loader has num_workers={workers}: try more of them, or do less for each sample; {fits}"


class Copies(Protocol):
    """Brings batches somewhere, in the background."""

    def send(self, batch: Batch) -> Any:
        """Start to bring a batch there; return what to receive it by."""

    def receive(self, sent: Any) -> Batch:
        """Return a batch that was sent, ready for whatever is queued on the device from now on."""


class DevicePrefetcher:
    """Reads batches ahead of their use and sends them to the device at once.

    While one batch is worked on, the next is fetched, and its copy runs beside the work on a stream of its own. A
    batch counts as drawn when it is asked for; what was read ahead and never asked for is forgotten.

    Args:
        device: A CUDA device.
        depth: How many batches are on their way while one is in use.
        copies: Brings them there; by default `PinnedCopies`.
    """

    def __init__(self, device: torch.device, depth: int = 1, copies: Copies | None = None) -> None:
        self.depth = depth
        self._copies: Copies = PinnedCopies(device, depth + 2) if copies is None else copies

    def leave_small(self) -> None:
        """Leave small batches where they are from now on, for a recorded step that copies them itself."""
        if isinstance(self._copies, PinnedCopies):
            self._copies.sends_small = False

    def over(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches on the device; an error in fetching one is raised when it is that batch's turn."""
        ahead: deque[Any] = deque()
        failure: Exception | None = None
        more = True
        while True:
            while more and len(ahead) <= self.depth:
                try:
                    batch = next(batches, _END)
                except Exception as error:
                    failure, batch = error, _END
                more = batch is not _END
                if more:
                    ahead.append(self._copies.send(batch))
            if not ahead:
                break
            yield self._copies.receive(ahead.popleft())
        if failure is not None:
            raise failure


_END = object()

SMALL = 65536
"""Up to so many bytes the driver takes a copy at once and the host goes on, which is quicker than pinned memory."""


class PinnedCopies:
    """Copies batches through pinned memory, on a stream of its own, without blocking the host or the device.

    The pinned buffers are a ring: each is pinned once and written again when the copy out of it is over. Tensors on
    the device are new ones for every batch, so that a batch may be kept; the allocator is told that the stream that
    computes uses them too. Anything but a plain tensor is moved in the usual way, when the batch is received.

    Args:
        device: A CUDA device.
        slots: How many batches have buffers.

    Attributes:
        sends_small: Whether batches are sent that are so small that the driver takes a copy of them at once.
    """

    def __init__(self, device: torch.device, slots: int) -> None:
        self._device = device
        self.sends_small = True
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        events: list[Any] = [torch.cuda.Event() for _ in range(slots)]  # type: ignore[no-untyped-call]
        self._ring = [(HostBuffers(pin=True), event) for event in events]
        self._turn = 0
        self._move = mover(device)

    def send(self, batch: Batch) -> Any:
        """Start to copy a batch to the device; one that is there already, or small, goes a shorter way."""
        size = self._bytes_to_copy(batch)
        if size == 0:
            return batch
        if size is not None and size <= SMALL:
            if not self.sends_small:
                return batch
            return type(batch)(tensor.to(self._device, non_blocking=True) for tensor in batch)
        buffers, copied = self._ring[self._turn]
        self._turn = (self._turn + 1) % len(self._ring)
        if not copied.query():
            # Only if the copy engine is as many batches behind as the ring has slots is there something to wait for.
            copied.synchronize()
        buffers.rewind()
        sent = Sent(copied)
        with torch.cuda.stream(self._stream):
            sent.batch = map_leaves(lambda leaf: self._send(leaf, buffers, sent), batch)
            if sent.tensors:
                copied.record(self._stream)
        return sent

    def _bytes_to_copy(self, batch: Batch) -> int | None:
        """Return how many bytes of a plain tuple or list of tensors are not on the device; None for anything else."""
        if type(batch) not in (list, tuple):
            return None
        size = 0
        for leaf in batch:
            if type(leaf) is not Tensor:
                return None
            if leaf.device != self._device:
                if not is_plain_tensor(leaf):
                    return None
                size += leaf.nbytes
        return size

    def _send(self, leaf: Any, buffers: "HostBuffers", sent: "Sent") -> Any:
        if not isinstance(leaf, Tensor):
            sent.odd = sent.odd or hasattr(leaf, "to")
            return leaf
        if leaf.device == self._device:
            return leaf
        if not is_plain_tensor(leaf):
            sent.odd = True
            return leaf
        host = leaf if leaf.is_pinned() else buffers.put(leaf)
        sent.tensors.append(host.to(self._device, non_blocking=True))
        return sent.tensors[-1]

    def receive(self, sent: Any) -> Batch:
        """Return the batch; what the current stream does from now on comes after its copy."""
        if type(sent) is not Sent:
            return sent
        if sent.tensors:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(sent.copied)
            for tensor in sent.tensors:
                tensor.record_stream(current)
        return self._move(sent.batch) if sent.odd else sent.batch


class Sent:
    """A batch on its way.

    Attributes:
        batch: The batch, its tensors on the device.
        copied: Happens on the device when they are filled.
        tensors: Those that are being filled.
        odd: Whether something in the batch has yet to be moved.
    """

    def __init__(self, copied: Any) -> None:
        self.copied = copied
        self.batch: Batch = None
        self.tensors: list[Tensor] = []
        self.odd = False


def is_plain_tensor(tensor: Tensor) -> bool:
    """Whether a tensor is nothing but numbers on the host, in a layout that a copy of its bytes keeps."""
    plain = type(tensor) is Tensor and tensor.is_cpu and tensor.layout is torch.strided and not tensor.requires_grad
    return plain and (tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last))


class HostBuffers:
    """Memory for the tensors of one batch, used again for the next; it grows when a batch needs more.

    Args:
        pin: Whether the memory is pinned, so that a device can copy from it while the host goes on.
    """

    def __init__(self, *, pin: bool) -> None:
        self._pin = pin
        self._buffers: list[Tensor] = []
        self._next = 0

    def rewind(self) -> None:
        """Begin with another batch."""
        self._next = 0

    def put(self, tensor: Tensor) -> Tensor:
        """Copy a tensor into the next piece of memory and return it there, with the same shape and strides."""
        size = tensor.numel() * tensor.element_size()
        place, self._next = self._next, self._next + 1
        if place == len(self._buffers):
            self._buffers.append(self._allocate(size))
        elif len(self._buffers[place]) < size:
            # Half as much again: batches of many lengths should not pin memory each time one is the longest yet.
            self._buffers[place] = self._allocate(max(size, len(self._buffers[place]) * 3 // 2))
        flat = self._buffers[place][:size].view(tensor.dtype)
        return flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor)

    def _allocate(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pin)


def prefetch_depth(prefetch: bool | int | str, device: torch.device) -> int:
    """Return how many batches are sent ahead to `device`; none to the CPU, where there is nowhere to send them.

    >>> prefetch_depth("auto", torch.device("cuda")), prefetch_depth(3, torch.device("cpu"))
    (1, 0)

    Args:
        prefetch: "auto" and True are one batch, a number is as many, False is none.
        device: Where batches go.

    Raises:
        ConfigError: It is none of these.
    """
    if prefetch != "auto" and (not isinstance(prefetch, int) or prefetch < 0):
        raise ConfigError(f"prefetch={prefetch!r} is no number of batches; use 'auto', True, False or a number from 0")
    return 0 if device.type != "cuda" else 1 if prefetch == "auto" else int(prefetch)
