"""How many bytes the processes of a run exchange."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "broadcast_": "broadcast",
    "send": "send",
    "recv_": "receive",
}
"""Torch's names of collectives, and the usual ones."""


class CommunicationVolume(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, adds up the bytes of every collective that this process takes part in.

    The bytes are those of the larger side: what is reduced, what a gather gives. How many of them cross a wire depends
    on the algorithm of the backend; a ring sends (n - 1) / n of what is gathered or scattered, and twice that of what
    is reduced for all. What the host agrees on over its own group is counted too, where it goes through torch.

    Attributes:
        bytes: Bytes by kind: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "receive".
        calls: How often, by kind.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: dict[str, int] = {}
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Carry out an operation, having counted it if it is a collective."""
        result = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            kind = KINDS.get(func._schema.name.split("::")[1])
            if kind is not None:
                self._count(kind, [*_tensors(args), *_tensors(result)])
        return result

    def _count(self, kind: str, tensors: list[Tensor]) -> None:
        self.bytes[kind] = self.bytes.get(kind, 0) + max((tensor.nbytes for tensor in tensors), default=0)
        self.calls[kind] = self.calls.get(kind, 0) + 1


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def measured(function: Callable[[], Any]) -> dict[str, int]:
    """Return the bytes that `function` exchanges, by kind."""
    with CommunicationVolume() as volume, torch.enable_grad():
        function()
    return dict(sorted(volume.bytes.items()))
