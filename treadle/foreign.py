"""Loops that a user wrote: their updates are counted all the same."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from treadle.trainer import Trainer


class ForeignUpdates:
    """While entered, every `optimizer.step()` outside the trainer's own `update` counts as an update.

    After it progress moves on, and whatever is due by steps happens at the end of the epoch, the only safe point that
    a loop of somebody else has. Gradients are averaged by the trainer's `exchange`.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self._handles: list[RemovableHandle] = []
        self._own_updates = trainer.progress.step

    def __enter__(self) -> Self:
        for optimizer in self._trainer.optimizers().values():
            self._handles.append(optimizer.register_step_post_hook(self._after))
        self._trainer._begin_streams()
        return self

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._trainer.in_own_loop:
            self._trainer.progress.count_update(0)
            self._own_updates += 1

    def __exit__(self, *exception: Any) -> None:
        for handle in self._handles:
            handle.remove()
        ran_the_trainers_own = self._trainer.progress.step > self._own_updates
        if exception[0] is None and not ran_the_trainers_own:
            self._trainer._finish_foreign_epoch()


class ForeignStep:
    """Makes one update of the loop out of a step that a user wrote, in which he calls `optimizer.step()` himself.

    Before it, gradients are clipped as the run's settings say, after the trainer's `exchange` has averaged them. While
    `own` is set, the step is the trainer's, which did both.

    Attributes:
        own: Whether the optimizer steps in the trainer's own `update`.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self._steps = 0
        self.own = False

    def run(self, step: Callable[[int], None], attempts: int) -> None:
        """Call `step` with 0, 1, ... until an optimizer has stepped, `attempts` times at most.

        A step that is made for one micro-batch, and steps the optimizer only when a window is full, is so called
        for every micro-batch of it.
        """
        optimizers = list(self._trainer.optimizers().values())
        handles = [one.register_step_pre_hook(self._before) for one in optimizers]
        handles += [one.register_step_post_hook(self._after) for one in optimizers]
        self._steps = 0
        try:
            for attempt in range(attempts):
                step(attempt)
                if self._steps:
                    return
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.own and self._trainer._clips:
            self._trainer._clip_gradients()

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._steps += 1
