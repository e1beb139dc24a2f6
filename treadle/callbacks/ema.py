"""`ModelEma`: a copy of a model whose weights are a moving average of the model's."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.parallel.state_dict import copy_model, is_sharded

Slot = tuple[dict[str, Any], str]
"""Where a tensor hangs: the dict of a module and the key in it, so that a tensor put there anew is found."""


class ModelEma(nn.Module):
    """A copy of `model` that follows it slowly: each update moves it by `1 - decay` of the way.

    Weights and floating-point buffers are averaged. Counters, masks with infinities and buffers that are not
    saved with the model are copied, since an average of them means nothing.

    Args:
        model: The model to follow.
        decay: How much of the average stays at each update.

    Attributes:
        module: The copy with the averaged weights.
    """

    def __init__(self, model: nn.Module, decay: float = 0.9999) -> None:
        super().__init__()
        if not 0.0 <= decay < 1.0:
            raise ConfigError(f"ModelEma: decay={decay} must be at least 0 and below 1")
        self.decay = decay
        self.module = copy_model(model).eval().requires_grad_(False)
        # Of a model that is sharded over processes, each averages the pieces that it holds.
        self._tensors = _pieces if is_sharded(model) else _tensors
        averaged = set(_averaged_names(self.module))
        own = dict(_slots(self.module))
        self._averaged = {name: slot for name, slot in own.items() if name in averaged}
        self._copied = {name: slot for name, slot in own.items() if name not in averaged}
        # In a tuple, because an attribute that is a module would become a part of this one.
        self._followed: tuple[nn.Module, list[Slot], list[Slot]] | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the copy with the averaged weights."""
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def update(self, model: nn.Module, applied: Tensor | None = None) -> None:
        """Move the average towards the weights of `model`; nothing is read from the device.

        Args:
            model: The model to follow.
            applied: 1 or 0, on the device: whether the update it follows was applied or left out.
        """
        averaged, copied = self._tensor_slots(model)
        own = self._tensors(self._averaged.values())
        if averaged and applied is None:
            torch._foreach_lerp_(own, self._tensors(averaged), 1.0 - self.decay)
        elif averaged and applied is not None:
            share = (1.0 - self.decay) * applied
            for average, tensor in zip(own, self._tensors(averaged), strict=True):
                average.lerp_(tensor, share.to(average.dtype))
        if copied:
            torch._foreach_copy_(self._tensors(self._copied.values()), self._tensors(copied))

    @torch.no_grad()
    def set(self, model: nn.Module) -> None:
        """Take the weights of `model` as they are."""
        averaged, copied = self._tensor_slots(model)
        own = [*self._averaged.values(), *self._copied.values()]
        if own:
            torch._foreach_copy_(self._tensors(own), self._tensors([*averaged, *copied]))

    def _tensor_slots(self, model: nn.Module) -> tuple[list[Slot], list[Slot]]:
        """Return where the tensors of `model` hang, in our order; found once for a model, not at each update."""
        if self._followed is None or self._followed[0] is not model:
            found = dict(_slots(model))
            differing = sorted(set(found) ^ (set(self._averaged) | set(self._copied)))
            if differing:
                raise ConfigError(f"ModelEma follows a model of another shape: {differing} are not in both")
            self._followed = (model, [found[name] for name in self._averaged], [found[name] for name in self._copied])
        return self._followed[1], self._followed[2]


def _slots(model: nn.Module) -> Iterator[tuple[str, Slot]]:
    """Yield every parameter and buffer once, tied ones too, by name."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for store in (module._parameters, module._buffers):
            for key, tensor in store.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{prefix}.{key}".lstrip("."), (store, key)


def _averaged_names(model: nn.Module) -> Iterator[str]:
    saved = set(model.state_dict())
    for name, (store, key) in _slots(model):
        tensor = store[key]
        inexact = tensor.is_floating_point() or tensor.is_complex()
        if isinstance(tensor, nn.Parameter):
            if inexact:
                yield name
        # The average of two infinities is nan. This reads the device, once, when the copy is made.
        elif inexact and name in saved and bool(torch.isfinite(tensor).all()):
            yield name


def _tensors(slots: Any) -> list[Tensor]:
    return [store[key] for store, key in slots]


def _pieces(slots: Any) -> list[Tensor]:
    return [getattr(store[key], "_local_tensor", store[key]) for store, key in slots]
