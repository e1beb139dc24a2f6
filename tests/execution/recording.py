"""A recorder for the CPU that behaves as a CUDA graph: it repeats operations on the same memory, and no Python."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_iter

from treadle.execution.cuda_graph.capture import CapturedStep
from treadle.execution.cuda_graph.capture_errors import explain
from treadle.execution.cuda_graph.graph_cache import GraphCache, Key


def noted_steps(monkeypatch: pytest.MonkeyPatch) -> list[CapturedStep]:
    """Return a list that gets every step recorded from now on; a trainer drops its own when its run ends."""
    noted: list[CapturedStep] = []
    add = GraphCache.add

    def note(recordings: GraphCache, key: Key, step: CapturedStep) -> None:
        noted.append(step)
        add(recordings, key, step)

    monkeypatch.setattr(GraphCache, "add", note)
    return noted


class _Tape(TorchDispatchMode):
    """Notes every operation with its arguments and results, and undoes what it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        for schema, value in zip(func._schema.arguments, args, strict=False):
            if schema.alias_info is not None and schema.alias_info.is_write:
                for tensor in tree_iter(value):
                    self._keep(tensor)
        result = func(*args, **kwargs)
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor):
                self._made.add(tensor.untyped_storage()._cdata)
        self.operations.append((func, args, kwargs, result))
        return result

    def _keep(self, tensor: Any) -> None:
        if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._made | set(self._before):
            self._before[tensor.untyped_storage()._cdata] = (tensor, tensor.clone())

    def undo(self) -> None:
        for tensor, before in self._before.values():
            tensor.copy_(before)


class TapeRecorder:
    """Records on the CPU.

    Attributes:
        captures: How many recordings succeeded.
        replays: How many replays there were.
        released: Whether the memory of recordings was given back.
        operations: The names of the operations of each recording.
    """

    def __init__(self) -> None:
        self.captures = self.replays = 0
        self.released = False
        self.operations: list[list[str]] = []

    def capture(self, work: Callable[[], None], generators: Iterable[torch.Generator] = ()) -> Callable[[], None]:
        random = torch.get_rng_state()
        tape = _Tape()
        try:
            with tape:
                work()
        except Exception as error:
            raise explain(error) from error
        finally:
            with torch.no_grad():
                tape.undo()
            torch.set_rng_state(random)
        self.captures += 1
        self.operations.append([str(operation[0]) for operation in tape.operations])

        def replay() -> None:
            self.replays += 1
            with torch.no_grad():
                for operation in tape.operations:
                    _repeat(*operation)

        return replay

    @contextmanager
    def watching(self) -> Iterator[None]:
        yield

    def release(self) -> None:
        self.released = True


def _repeat(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    fresh = func(*args, **kwargs)
    for old, new in zip(tree_flatten(result)[0], tree_flatten(fresh)[0], strict=True):
        # What shares memory with an argument was written there.
        if isinstance(old, Tensor) and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
            old.detach().copy_(new.detach())
