"""Optimizers that step by themselves do not step with the gradients of a scaled loss."""

from collections.abc import Iterable
from typing import Any, Self

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
