"""Tensors that go where a model goes, and are no part of its state."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Constants(nn.Module):
    """Tensors that follow from the data: graphs, histories, features of users and items.

    They move with the model they are a part of. They are not buffers: nothing trains, saves or shares them between
    processes, for every process has them from the same data.

    >>> import torch
    >>> held = Constants(degrees=torch.tensor([2, 1]))
    >>> held.degrees.tolist(), list(held.state_dict())
    ([2, 1], [])

    Args:
        tensors: The tensors by name.
    """

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        self._held = tensors

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__.get("_held", {})
        return held[name] if name in held else super().__getattr__(name)

    def hold(self, **tensors: Tensor) -> None:
        """Add tensors, or replace those of the same name."""
        self._held.update(tensors)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Constants":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._held = {name: fn(tensor) for name, tensor in self._held.items()}
        return self

    def extra_repr(self) -> str:
        """Return the shapes of the tensors."""
        return ", ".join(f"{name}: {tuple(tensor.shape)}" for name, tensor in self._held.items())
