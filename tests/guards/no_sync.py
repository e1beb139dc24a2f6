"""A guard for code that must not wait for the device: whatever reads a tensor's values raises.

Without a GPU every tensor counts as one on the device, so the guard works anywhere. What it cannot tell on the CPU is a
move to the device that a tensor is on already, `tensor.to(trainer.device)`, from a move to the host: only a written
`"cpu"` is caught there. On a GPU both are, and CUDA itself reports any synchronisation that is left.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")],
    ),
]
"""What to run a guarded test on, as values to parametrize it with."""

READING_METHODS = (
    "__array__",
    "__bool__",
    "__complex__",
    "__float__",
    "__index__",
    "__int__",
    "__repr__",
    "cpu",
    "item",
    "numpy",
    "tolist",
)
READING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
READING_OPERATIONS = {"aten::_coalesce", "aten::_to_sparse"}
"""Operations that count on the device and wait for the number, though torch gives them no tag for it."""
INDEXING = {"aten::index.Tensor", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
"""Tagged or not, these read only if an index is a mask: its true places have to be counted."""
MASKS = (torch.bool, torch.uint8)

HostTensors = Callable[[], Iterable[Tensor]]


class DeviceReadError(AssertionError):
    """Guarded code read a tensor; the message names the operation."""


@contextmanager
def no_sync(device: str = "cpu", *, exempt: HostTensors = tuple) -> Iterator[None]:
    """Raise `DeviceReadError` if the block reads a tensor on `device`.

    Args:
        device: The type of the device; on "cuda", tensors on the host may be read.
        exempt: Tells which tensors live on the host even where everything else is on the device; asked at each read,
            because an optimizer makes its counters in its first step.
    """

    def guarded(value: Any) -> bool:
        return isinstance(value, Tensor) and value.device.type == device and all(value is not own for own in exempt())

    with ExitStack() as stack:
        for name in READING_METHODS:
            stack.enter_context(patch.object(Tensor, name, _raising(name, guarded)))
        stack.enter_context(patch.object(Tensor, "to", _raising_if_to_host(device, guarded)))
        stack.enter_context(patch.object(torch.cuda, "synchronize", _raising("cuda.synchronize", lambda value: True)))
        stack.enter_context(_Reads(guarded))
        if device == "cuda":
            stack.enter_context(_cuda_reports_synchronisation())
        yield


def host_counters(optimizer: Optimizer) -> HostTensors:
    """Return the step counters of `optimizer` as tensors to exempt.

    Torch's Adam family counts its steps in tensors that are on the host by design, beside weights on a GPU too, and
    reads them for the correction of its bias: nothing waits. Only here, where everything is on the CPU, do they look
    like the rest.
    """
    return lambda: [state["step"] for state in optimizer.state.values() if "step" in state]


class _Reads(TorchDispatchMode):
    """Raises at every operation whose result, or its shape, has to be known on the host."""

    def __init__(self, guarded: Callable[[Any], bool]) -> None:
        super().__init__()
        self._guarded = guarded

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _reads(func, args) and any(map(self._guarded, args)):
            raise DeviceReadError(f"{func.name()} reads the device")
        return func(*args, **(kwargs or {}))


def _reads(func: Any, args: Any) -> bool:
    name = func.name()
    if name in INDEXING:
        masked = any(index is not None and index.dtype in MASKS for index in args[1])
        # A single number put where a mask is true is a fill, which counts nothing.
        return masked and not (len(args) > 2 and args[2].numel() == 1)
    return name in READING_OPERATIONS or not READING_TAGS.isdisjoint(func.tags)


def _raising(name: str, guarded: Callable[[Any], bool]) -> Callable[..., Any]:
    original = getattr(Tensor, name, torch.cuda.synchronize)

    def call(*args: Any, **kwargs: Any) -> Any:
        if guarded(args[0] if args else None):
            raise DeviceReadError(f"{name} reads the device")
        return original(*args, **kwargs)

    return call


def _raising_if_to_host(device: str, guarded: Callable[[Any], bool]) -> Callable[..., Any]:
    original = Tensor.to

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        target = kwargs.get("device", args[0] if args else None)
        written = isinstance(target, str) and target.startswith("cpu")
        meant = isinstance(target, torch.device) and target.type == "cpu" and device != "cpu"
        if (written or meant) and guarded(self):
            raise DeviceReadError("to('cpu') reads the device")
        return original(self, *args, **kwargs)

    return to


@contextmanager
def _cuda_reports_synchronisation() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        # Torch warns that it does not see every synchronisation; what it does see is worth having.
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype", category=UserWarning)
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
