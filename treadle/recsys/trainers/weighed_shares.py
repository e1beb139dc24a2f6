"""Gradients of a loop of the user's, weighed by how much of a batch a process has."""

from typing import TYPE_CHECKING, Any

from treadle.gradients import gradients_of
from treadle.phase import held_by

if TYPE_CHECKING:
    from treadle.recsys.trainers._core import RecsysCore


class WeighedShares:
    """While entered, gradients of a loop of the user's count by the rows that this process has of a batch.

    The core averages them over the processes, as if all had equally many; a last, short batch may not divide evenly.

    Args:
        core: The trainer whose optimizers step in that loop.
    """

    def __init__(self, core: "RecsysCore") -> None:
        self._core = core
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        if self._core.processes.distributed:
            optimizers = self._core.optimizers().values()
            self._handles = [one.register_step_pre_hook(self._weigh) for one in optimizers]

    def __exit__(self, *exception: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def _weigh(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        core = self._core
        factor = getattr(core._train_dataloader, "share", 1.0) * core.processes.size
        if core.in_own_loop or abs(factor - 1.0) < 1e-12:
            return
        for gradient in gradients_of(held_by(optimizer)):
            gradient.mul_(factor)
