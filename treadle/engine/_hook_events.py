"""The first callback of a run in this door, and the handler in which hooks and callbacks stand in one order."""

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from treadle.callback import CallbackHandler, TrainerCallback
from treadle.engine._entries import CALLBACK, EVENT_OF, join_failures
from treadle.errors import StopTrainingError

if TYPE_CHECKING:
    from treadle.engine.trainer_base import TrainerBase


class HookEvents(TrainerCallback):
    """Says at each moment where the run is, before anybody registered acts, and keeps the states of hooks.

    Args:
        face: The trainer that a user sees.
    """

    def __init__(self, face: "TrainerBase") -> None:
        self._face: TrainerBase = weakref.proxy(face)
        self._at_end = False
        self._norm: Any = None

    def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
        """Make sure that all processes have what acts together."""
        self._at_end = False
        self._go_to(trainer.progress.step, trainer)
        self._face.hook_list.check_others(trainer.processes)

    def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
        """Say which iteration begins, after what a resumed one left to do."""
        if self._face.hook_list.turns.resumed:
            self._catch_up(trainer)
        self._go_to(trainer.progress.step, trainer)

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        """Look whether the numbers are finite, and begin with the first of those that act now."""
        trainer.storage.samples = trainer.consumed_samples
        trainer.check_numbers_if_due()
        self._face.hook_list.turns.done = 0

    def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
        """Say that the run came to its end."""
        self._catch_up(trainer)
        self._go_to(trainer.progress.step, trainer)
        self._at_end = True

    def on_exception(self, trainer: Any, exception: BaseException, **kwargs: Any) -> None:
        """Take note of what the run died of, for those that are told next."""
        self._at_end = False
        if not any(entry.is_started for entry in self._face.hook_list.entries):
            return
        self._face.failure = exception
        if overrides(self._face, "after_train"):
            try:
                self._face.after_train()
            except Exception as failure:
                join_failures([exception, failure])

    def close(self) -> None:
        """Note, when everybody else is closed, that nothing is left to do in a run that came to its end."""
        if self._at_end:
            self._face.core.mark_complete()

    def _catch_up(self, trainer: Any) -> None:
        if self._face.hook_list.turns.resumed:
            self._go_to(trainer.progress.step - 1, trainer)
            trainer.storage.samples = trainer.consumed_samples
            trainer.gradient_norm = self._norm
            self._face.hook_list.catch_up(trainer)

    def _go_to(self, iteration: int, trainer: Any) -> None:
        self._face.iter = trainer.storage.iter = iteration

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the hooks, and the norm of the gradient if callbacks have still to act."""
        state, norm = self._face.hook_list.state_dict(), self._face.core.gradient_norm
        waits = any(key.startswith(CALLBACK) for key in state["unfinished"])
        return {**state, "gradient_norm": norm} if waits and norm is not None else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand the hooks their states."""
        self._face.hook_list.load_state_dict(state)
        norm = state.get("gradient_norm")
        self._norm = None if norm is None else norm.to(self._face.device)


class EngineCallbacks(CallbackHandler):
    """The callbacks of a run in this door: a wish to stop is met after the step, so that those behind still act in it.

    Args:
        callbacks: The callbacks, in order.
        core: The trainer whose they are.
        face: The trainer that a user sees, which may have a `before_train` of its own.
    """

    def __init__(self, callbacks: Iterable[Any], core: Any, face: "TrainerBase") -> None:
        super().__init__(callbacks)
        self._core: Any = weakref.proxy(core)
        self._face: TrainerBase = weakref.proxy(face)
        self.on_stop = self._take

    def _take(self, error: StopTrainingError) -> bool:
        self._core.request_stop(str(error) or "a hook asked to stop", for_good=True)
        return True

    def start_session(self, event: str | None, trainer: Any) -> None:
        """Start those that are registered, by the trainer's own `before_train` if it has one."""
        if event == EVENT_OF["before_train"] and overrides(self._face, "before_train"):
            self._face.iter = trainer.storage.iter = trainer.progress.step
            self._face.before_train()
        else:
            super().start_session(event, trainer)

    def start(self) -> None:
        """Start those that are registered, one after the other."""
        super().start_session(EVENT_OF["before_train"], self._core)


def overrides(face: "TrainerBase", moment: str) -> bool:
    """Whether a trainer has a moment of its own, by which those that are registered are called."""
    return not getattr(getattr(face.__class__, moment), "is_core_moment", False)
