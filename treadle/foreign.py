"""Loops that a user wrote: their updates are counted and their gradients averaged all the same."""

from typing import TYPE_CHECKING, Any, Self

from torch.utils.hooks import RemovableHandle

from treadle.parallel import GradientAverager
from treadle.phase import held_by

if TYPE_CHECKING:
    from treadle.trainer import Trainer


class ForeignUpdates:
    """While entered, every `optimizer.step()` outside the trainer's own `update` counts as an update.

    Before it, gradients are averaged across the processes; after it, progress moves on and whatever is due by
    steps happens at the end of the epoch, the only safe point that a loop of somebody else has.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self._averager = GradientAverager(trainer.processes)
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for optimizer in self._trainer.optimizers().values():
            self._handles.append(optimizer.register_step_pre_hook(self._before))
            self._handles.append(optimizer.register_step_post_hook(self._after))
        self._trainer._begin_streams()
        return self

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._trainer.in_own_loop:
            self._averager.average(held_by(optimizer))

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._trainer.in_own_loop:
            self._trainer.progress.count_update(0)

    def __exit__(self, *exception: Any) -> None:
        for handle in self._handles:
            handle.remove()
        if exception[0] is None and not self._trainer.in_own_loop:
            self._trainer._finish_foreign_epoch()
