"""Stand-ins for what captures CUDA graphs: the operations of a block are noted on the CPU, undone, and done again."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_iter


class FakeGraph:
    """What the operations of a block were, to do them again on the same memory."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def pool(self) -> object:
        return self

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, result in self.operations:
                again = func(*args, **kwargs)
                for old, new in zip(tree_flatten(result)[0], tree_flatten(again)[0], strict=True):
                    # What shares memory with an argument was written there.
                    if isinstance(old, Tensor) and _storage(old) != _storage(new):
                        old.detach().copy_(new.detach())


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations, and what was in memory before them."""

    def __init__(self, graph: FakeGraph) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = graph
        self._made: set[int] = set()
        self._before: dict[int, tuple[Tensor, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [value for value in tree_iter((args, kwargs or {})) if isinstance(value, Tensor)]
        for tensor in given:
            if _storage(tensor) not in self._made and _storage(tensor) not in self._before:
                self._before[_storage(tensor)] = (tensor, tensor.untyped_storage().clone())  # type: ignore[no-untyped-call]
        result = func(*args, **(kwargs or {}))
        outside = set(map(_storage, given))
        self._made |= {_storage(one) for one in tree_iter(result) if isinstance(one, Tensor)} - outside
        self._graph.operations.append((func, args, kwargs or {}, result))
        return result

    def undo(self) -> None:
        for tensor, before in self._before.values():
            tensor.untyped_storage().copy_(before)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def capturing(graph: FakeGraph, **options: Any) -> Iterator[None]:
    noting = _Noting(graph)
    with noting:
        yield
    noting.undo()


class FakeStream:
    """Everything is done at once, so there is nothing to wait for."""

    def __init__(self, *arguments: Any) -> None:
        self.waits = 0

    def wait_stream(self, other: Any) -> None:
        self.waits += 1

    def wait_event(self, event: Any) -> None:
        self.waits += 1


class FakeEvent:
    """Has always happened."""

    def record(self, stream: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


def put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let code that captures run without a GPU."""
    main = FakeStream()
    names: dict[str, Any] = {
        "CUDAGraph": FakeGraph,
        "Stream": FakeStream,
        "Event": FakeEvent,
        "graph": capturing,
        "stream": lambda stream: nullcontext(),
        "current_stream": lambda: main,
        "synchronize": lambda: None,
    }
    for name, value in names.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
