"""Whole training steps captured by hand as CUDA graphs: what anybody could write for one model, and nothing more.

Each feed is one way in which a captured step gets its batches. Warm-up trains, so weights and the optimizer's state are
put back in place afterwards, and a captured job ends where an eager one does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.execution.work import Clock, Material, capturable_adamw
from benchmarks.job import LOSS_FUNC, Batch, Job

WARM_UP = 3


class Feed(Protocol):
    """A captured job that trains epoch after epoch."""

    job: Job

    def epoch(self) -> None:
        """Train one epoch."""


class Capturing:
    """Captures steps of one job: one stream and one pool of memory for all of its graphs.

    Args:
        job: Whose step; its optimizer must be capturable.
        compiled: Whether forward pass and loss are compiled, inside the captured step.
    """

    def __init__(self, job: Job, compiled: bool = False) -> None:
        self.job = job
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool: Any = None
        self._loss: Callable[..., Any] = torch.compile(self._forward, dynamic=False) if compiled else self._forward
        job.model.train()

    def _forward(self, inputs: Tensor, targets: Tensor) -> Any:
        return LOSS_FUNC(self.job.model(inputs), targets)

    def step(self, batch: Batch) -> None:
        """Do what a replay does."""
        self.job.optimizer.zero_grad(set_to_none=True)
        self._loss(*batch).backward()
        self.job.optimizer.step()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Warm `work` up, put the job back, capture it, and return what replays it."""
        with restored(self.job.model, self.job.optimizer):
            on_side_stream(self._stream, work, WARM_UP)
        self.job.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        self._pool = self._pool or graph.pool()
        return graph.replay


def on_side_stream(stream: Any, work: Callable[[], None], times: int) -> None:
    """Do `work` some times on `stream`, between what came before and what comes after."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


@contextmanager
def workspaces_kept() -> Iterator[None]:
    """Keep whoever runs in the block from giving the workspaces of cuBLAS back.

    Lightning does so before and after each fit. A captured step multiplies in the workspace that its stream got while
    it was warmed up, and that belongs to no graph: given back, it is somebody else's memory at the next replay, or
    nobody's, and the process dies. Who runs alone in a process does not need this, and nobody gets slower by it.
    """
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is None:
        # This torch has no CUDA.
        yield
        return
    torch._C._cuda_clearCublasWorkspaces = lambda: None
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces = clear


@contextmanager
def restored(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Put weights and buffers back in place after the block, and the state of a new optimizer back to zero."""
    tensors = [*model.parameters(), *model.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    yield
    with torch.no_grad():
        for tensor, copy in zip(tensors, before, strict=True):
            tensor.copy_(copy)
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()


class StaticFeed:
    """The same batch in every step, nothing copied: the floor."""

    def __init__(self, material: Material, compiled: bool = False) -> None:
        self._steps = material.work.graph_steps
        self.job = material.job(material.batches, capturable_adamw)
        batch = material.batches[0]
        # Kept: a replay runs kernels that were loaded with the compiled function, and are unloaded with it.
        self._capturing = capturing = Capturing(self.job, compiled)
        self._replay = capturing.capture(lambda: capturing.step(batch))

    def epoch(self) -> None:
        """Train one epoch."""
        for _ in range(self._steps):
            self._replay()


class CopyFeed:
    """Ready batches on the device, copied into the inputs of the graph."""

    def __init__(self, material: Material, compiled: bool = False) -> None:
        self.job = material.job(material.batches, capturable_adamw)
        self._inputs, self._targets = (part.clone() for part in material.batches[0])
        # Kept: a replay runs kernels that were loaded with the compiled function, and are unloaded with it.
        self._capturing = capturing = Capturing(self.job, compiled)
        self._replay = capturing.capture(lambda: capturing.step((self._inputs, self._targets)))

    def epoch(self) -> None:
        """Train one epoch."""
        for inputs, targets in self.job.loader:
            self._inputs.copy_(inputs)
            self._targets.copy_(targets)
            self._replay()


class ResidentFeed:
    """All data on the device; the step reads its batch through a permutation and a cursor, inside the graph.

    Args:
        material: The data.
        compiled: Whether forward pass and loss are compiled.
        shuffled: Whether each epoch has another order.
    """

    def __init__(self, material: Material, compiled: bool = False, *, shuffled: bool = True) -> None:
        self._shuffled, self._steps = shuffled, material.work.graph_steps
        self.job = material.job(material.batches, capturable_adamw)
        count, size = len(material.targets), material.work.batch_size
        self._permutation = torch.arange(count, device=material.device)
        self._cursor = torch.zeros((), dtype=torch.int64, device=material.device)
        # The graph reads them in every replay, so that they must live as long as it does.
        self._offsets = torch.arange(size, device=material.device)
        # Kept: a replay runs kernels that were loaded with the compiled function, and are unloaded with it.
        self._capturing = capturing = Capturing(self.job, compiled)

        def work() -> None:
            rows = self._permutation.index_select(0, self._offsets + self._cursor)
            self._cursor.add_(size)
            capturing.step((material.inputs.index_select(0, rows), material.targets.index_select(0, rows)))

        # The steps before capture move the cursor too; it never leaves the data, for there are more batches than these.
        self._replay = capturing.capture(work)

    def epoch(self) -> None:
        """Train one epoch."""
        if self._shuffled:
            count = len(self._permutation)
            self._permutation.copy_(torch.randperm(count, device=self._permutation.device))
        self._cursor.zero_()
        for _ in range(self._steps):
            self._replay()


class _Slot:
    """A pinned buffer, the inputs of one graph, and the events that say when each may be written again."""

    def __init__(self, batch: Batch, device: torch.device) -> None:
        self.pinned = [part.clone().pin_memory() for part in batch]
        self.inputs = [part.to(device, copy=True) for part in batch]
        self.copied, self.used = torch.cuda.Event(), torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.replay: Callable[[], None] = lambda: None


class HostFeed:
    """Ready batches on the host: pinned buffers, copies on a side stream, two graphs that take turns."""

    def __init__(self, material: Material, compiled: bool = False) -> None:
        self.job = material.job(material.host_batches, capturable_adamw)
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._slots = [_Slot(material.host_batches[0], material.device) for _ in range(2)]
        # Kept: a replay runs kernels that were loaded with the compiled function, and are unloaded with it.
        self._capturing = capturing = Capturing(self.job, compiled)
        for slot in self._slots:
            inputs, targets = slot.inputs
            slot.replay = capturing.capture(partial(capturing.step, (inputs, targets)))

    def epoch(self) -> None:
        """Train one epoch."""
        main = torch.cuda.current_stream()
        for number, batch in enumerate(self.job.loader):
            slot = self._slots[number % 2]
            # The copy out of this buffer, two steps ago, must be over before the host writes to it.
            slot.copied.synchronize()
            for pinned, part in zip(slot.pinned, batch, strict=True):
                pinned.copy_(part)
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(slot.used)
                for inputs, pinned in zip(slot.inputs, slot.pinned, strict=True):
                    inputs.copy_(pinned, non_blocking=True)
                slot.copied.record(self._stream)
            main.wait_event(slot.copied)
            slot.replay()
            slot.used.record(main)


def train_captured(feed: Feed, clock: Clock, epochs: int = 1) -> None:
    """Train with a captured step."""
    for _ in range(epochs):
        clock.begin()
        feed.epoch()
        clock.end()
