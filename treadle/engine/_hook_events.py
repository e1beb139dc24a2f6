"""The one callback through which the core's events reach the hooks of a trainer."""

import time
import weakref
from typing import TYPE_CHECKING, Any

from treadle.callback import TrainerCallback
from treadle.engine._hook_list import join_failures
from treadle.leaving import leaving_in

if TYPE_CHECKING:
    from treadle.engine.trainer_base import TrainerBase


class HookEvents(TrainerCallback):
    """Calls the hooks of a face at the core's events.

    Args:
        face: The trainer whose hooks are called.
    """

    def __init__(self, face: "TrainerBase") -> None:
        self._face: TrainerBase = weakref.proxy(face)
        self._ended = False

    def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
        """Call `before_train`."""
        self._ended = False
        self._go_to(trainer.progress.step, trainer)
        self._face.before_train()

    def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
        """Call `before_step`, after what a resumed iteration left to do."""
        self._catch_up(trainer)
        self._go_to(trainer.progress.step, trainer)
        self._face.before_step()
        trainer.fetch_began = time.perf_counter()

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        """Look whether the numbers are finite, then call `after_step`."""
        trainer.storage.samples = trainer.consumed_samples
        trainer.check_numbers_if_due()
        # What hooks evaluate now can be broken off: a resumed run begins with the hooks that have still to act.
        with leaving_in(trainer.leavable_evaluation()):
            self._face.after_step()

    def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
        """Call `after_train` of a run that came to its end."""
        self._catch_up(trainer)
        self._go_to(trainer.progress.step, trainer)
        for failure in self._end():
            raise failure
        trainer.mark_complete()

    def on_exception(self, trainer: Any, exception: BaseException, **kwargs: Any) -> None:
        """Call `after_train` of a run that died, and report what goes wrong in it besides."""
        if not self._ended:
            self._face.failure = exception
            join_failures([exception, *self._end()])

    def _end(self) -> list[BaseException]:
        self._ended = True
        try:
            self._face.after_train()
        except Exception as failure:
            return [failure]
        return []

    def _catch_up(self, trainer: Any) -> None:
        """Let the hooks act that had still to, in the last iteration before the checkpoint."""
        unfinished = self._face.hook_list.unfinished
        if unfinished:
            self._go_to(trainer.progress.step - 1, trainer)
            trainer.storage.samples = trainer.consumed_samples
            self._face.hook_list.after_step(self._face._stop_for_good, only=list(unfinished))

    def _go_to(self, iteration: int, trainer: Any) -> None:
        self._face.iter = trainer.storage.iter = iteration

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the hooks."""
        return self._face.hook_list.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand the hooks their states."""
        self._face.hook_list.load_state_dict(state)
