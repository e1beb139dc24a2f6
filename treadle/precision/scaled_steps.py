"""Gradients and the scale of the loss fit together: in passes and in steps of the user's own."""

from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from treadle.errors import LossError
from treadle.precision.formats import Precision


class ScaledSteps:
    """While entered in fp16, refuses a step of an optimizer whose gradients are still those of the scaled loss.

    Args:
        precision: What scales the loss.
        optimizers: The optimizers.
    """

    def __init__(self, precision: Precision, optimizers: Iterable[Optimizer]) -> None:
        self._precision, self._optimizers = precision, list(optimizers)
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        if self._precision.scaler is not None:
            self._handles = [one.register_step_pre_hook(self) for one in self._optimizers]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Look at the gradients of `optimizer`, which is about to step.

        Raises:
            LossError: They are multiplied by the scale.
        """
        if self._precision.scaled:
            raise LossError(
                f"{type(optimizer).__name__} steps with the gradients of a loss that precision='fp16' has scaled; "
                "call super().optimizer_step() in an optimizer_step of your own and self.optimizer_step() elsewhere, "
                "which bring them to their true size and leave out those that overflowed"
            )

    def passes(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` may step as it is."""
        return not self._precision.scaled


class ScaledPasses:
    """While entered in fp16, refuses a backward pass that adds to gradients from a loss that was not scaled.

    A pass that begins at a scaled loss is known by the number that torch gives to it. Nothing is read.

    Args:
        precision: What scales the loss.
        parameters: Whose gradients are looked at.
    """

    def __init__(self, precision: Precision, parameters: Iterable[nn.Parameter]) -> None:
        self._precision = precision
        self._parameters = [one for one in parameters if one.requires_grad and one.is_leaf]
        self._passes: set[int] = set()
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        self._precision.on_scaled = self._watch
        self._handles = [
            one.register_post_accumulate_grad_hook(self._look)  # type: ignore[no-untyped-call]
            for one in self._parameters
        ]
        return self

    def __exit__(self, *exception: object) -> None:
        self._precision.on_scaled = None
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _watch(self, scaled: Tensor) -> None:
        if scaled.requires_grad:
            scaled.register_hook(self._note)  # type: ignore[no-untyped-call]

    def _note(self, gradient: Tensor) -> None:
        self._passes.add(torch._C._current_graph_task_id())

    def _look(self, parameter: Tensor) -> None:
        if torch._C._current_graph_task_id() not in self._passes:
            raise LossError(
                "backward_step adds the gradient of a loss that precision='fp16' has not scaled, which would vanish "
                "when gradients are brought to their true size; call super().backward_step(loss) or "
                "self.precision.scale(loss).backward()"
            )
