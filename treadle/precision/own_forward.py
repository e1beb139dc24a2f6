"""Forward passes in a loop that a user wrote run in bf16, too, where the run does."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Self

from torch import nn
from torch.utils.hooks import RemovableHandle

from treadle.data.batches import map_leaves
from treadle.precision.formats import Precision
from treadle.precision.sparse import widened


class OwnForward:
    """While entered, every call of a model runs under autocast, and its outputs are in single precision.

    It is what Accelerate does to a model that it prepares. The trainer's own loops know better, and go without.

    Args:
        precision: The precision of the run; nothing is done for fp32, nor for fp16, in which a loop that does not scale
            its loss would learn nothing.
        model: The model.
        idle: Whether the trainer's own loop is at work.
    """

    def __init__(self, precision: Precision, model: nn.Module, idle: Callable[[], bool]) -> None:
        self._precision, self._model, self._idle = precision, model, idle
        self._entered: list[AbstractContextManager[Any] | None] = []
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        if self._precision.kind == "bf16":
            self._handles = [
                self._model.register_forward_pre_hook(self._before),
                self._model.register_forward_hook(self._after, always_call=True),
            ]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, model: nn.Module, args: Any) -> None:
        region = None if self._idle() else self._precision.autocast("own")
        self._entered.append(region)
        if region is not None:
            region.__enter__()

    def _after(self, model: nn.Module, args: Any, outputs: Any) -> Any:
        region = self._entered.pop()
        if region is None:
            return outputs
        region.__exit__(None, None, None)
        return map_leaves(widened, outputs)
