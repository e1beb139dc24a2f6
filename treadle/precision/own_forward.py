"""Forward passes in a loop that a user wrote run in bf16, too, where the run does."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from treadle.data.batches import map_leaves
from treadle.precision.formats import Precision
from treadle.precision.sparse import is_compiled, widened


class OwnForward:
    """While entered, every call of a model runs under autocast, and its outputs are in single precision.

    It is what Accelerate does to a model that it prepares. The trainer's own loops know better, and go without.

    Args:
        precision: The precision of the run; nothing is done for fp32, nor for fp16, in which a loop that does not scale
            its loss would learn nothing.
        model: The model.
        idle: Whether the trainer's own loop is at work.
        tell: Called in fp16, once, when the model is called otherwise.
    """

    def __init__(
        self,
        precision: Precision,
        model: nn.Module,
        idle: Callable[[], bool],
        tell: Callable[[], None] | None = None,
    ) -> None:
        self._precision, self._model, self._idle, self._tell = precision, model, idle, tell
        self._entered: list[AbstractContextManager[Any] | None] = []
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        before, after = self._before, self._after
        if is_compiled(self._model):
            # Traced, what is entered anew for each call would have the model compiled anew for each.
            before, after = map(torch.compiler.disable, (before, after))
        if not self._precision.plain:
            self._handles = [
                self._model.register_forward_pre_hook(before),
                self._model.register_forward_hook(after, always_call=True),
            ]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, model: nn.Module, args: Any) -> None:
        idle = self._idle()
        if not idle and self._precision.kind == "fp16" and self._tell is not None:
            tell, self._tell = self._tell, None
            tell()
        region = None if idle or self._precision.kind != "bf16" else self._precision.autocast("own")
        self._entered.append(region)
        if region is not None:
            region.__enter__()

    def _after(self, model: nn.Module, args: Any, outputs: Any) -> Any:
        region = self._entered.pop()
        if region is None:
            return outputs
        region.__exit__(None, None, None)
        return map_leaves(widened, outputs)
