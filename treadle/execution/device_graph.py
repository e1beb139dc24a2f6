"""Recording work on a CUDA device, and leaving the device usable when that fails."""

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from treadle.data.cudnn_dropout import set_cuda_state
from treadle.execution.explaining import explain

Replay = Callable[[], None]


class Recorder(Protocol):
    """Records what some work does on a device, without doing it, to be repeated as often as one likes."""

    def capture(self, work: Callable[[], None], generators: Iterable[torch.Generator] = ()) -> Replay:
        """Return what repeats `work`.

        Raises:
            CaptureError: It cannot be recorded; the device is as it was.
        """

    def watching(self) -> AbstractContextManager[Any]:
        """Return the context in which work that makes the host wait for the device is an error."""

    def release(self) -> None:
        """Give back the memory of recordings that nobody holds any more."""


class CudaGraphs:
    """Records into CUDA graphs that share one pool of memory and one stream.

    Args:
        device: Where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Torch refuses a pool once all of its recordings are gone, as after a rollback; this one stays.
        self._keeper: torch.cuda.CUDAGraph | None = None

    def capture(self, work: Callable[[], None], generators: Iterable[torch.Generator] = ()) -> Replay:
        """Return what repeats `work`, which draws from the device's generator and from `generators`."""
        random = torch.cuda.get_rng_state(self._device)
        self._keeper = self._keeper or self._record_something()
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        try:
            pool = self._keeper.pool()
            # In this mode other threads, such as one that pins memory, may go on with what they do.
            with (
                _no_garbage_collected(),
                torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                work()
        except Exception as error:
            self._recover(random)
            raise explain(error) from error
        return graph.replay

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Refuse work that makes the host wait for the device, where it stands in the program."""
        mode = torch.cuda.get_sync_debug_mode()
        try:
            with warnings.catch_warnings():
                # Where warnings are errors, torch's note on its first use would leave the mode as it is now set.
                warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
                torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    def release(self) -> None:
        """Let go of the pool; torch frees its memory when it needs some."""
        self._keeper = None

    def _record_something(self) -> torch.cuda.CUDAGraph:
        something, graph = torch.zeros(1, device=self._device), torch.cuda.CUDAGraph()
        with _no_garbage_collected(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            something.add_(1)
        return graph

    def _recover(self, random: torch.Tensor) -> None:
        """Free the device's generator, which a failed recording leaves locked until another one succeeds."""
        torch.cuda.synchronize(self._device)
        self._record_something()
        set_cuda_state(random, device=self._device)


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Hold the collector off: a graph of an earlier run that it destroyed during a recording would end the process."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
