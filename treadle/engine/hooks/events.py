"""What stands in the core's table for what is registered, and whose turn it is after an iteration."""

import logging
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from treadle.callback import CallbackHandler, TrainerCallback
from treadle.callbacks.run_head import describe_run
from treadle.console.lines import clock, counted
from treadle.engine.hooks.base import HookBase
from treadle.errors import StopTrainingError
from treadle.runs.preemption import EvaluationInterrupted

if TYPE_CHECKING:
    from treadle.engine.trainers.base import TrainerBase

logger = logging.getLogger(__name__)

BACKWARD_END = "on_backward_end"
"""The event of this door at which the gradient of an update is complete, and not clipped yet."""
EVENT_OF = {
    "before_train": "on_training_run_start",
    "before_step": "on_update_start",
    "after_backward": BACKWARD_END,
    "after_step": "on_update_end",
    "after_train": "on_training_run_end",
}
MOMENTS = tuple(EVENT_OF)
"""The moments of a run at which hooks are called."""
BY_THE_STEP = "after_backward"
"""The moment that comes within a step, so that an inner trainer has it too."""
CALLBACK = "callback "
"""What the keys of callbacks begin with, so that none is that of a hook."""
LOG = "on_log"
"""The key under which it is noted that the log of an iteration is still to come."""


class Turns:
    """Whose turn it is after an iteration: a checkpoint may be taken between two of those that act there.

    Attributes:
        keys: Who acts after an iteration, in order.
        done: How many of them have acted in this iteration.
        resumed: Who had still to act when the run was saved; it begins with these.
        failures: What went wrong in the last moment of hooks.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.done = 0
        self.resumed: list[str] = []
        self.failures: list[BaseException] = []

    @property
    def unfinished(self) -> list[str]:
        """Who has still to act in this iteration."""
        return list(self.resumed) or self.keys[self.done :]


class Entry:
    """One thing in the core's table that stands for something registered; of these there are many.

    Args:
        turns: Whose turn it is.
        place: How many act before it after an iteration.
    """

    unique = False

    def __init__(self, turns: Turns, place: int) -> None:
        self._turns, self._place = turns, place


class CallbackEntry(Entry):
    """Takes note that the callback behind it acts now."""

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        """Count it as done: what it saves itself knows of it."""
        self._turns.done = self._place + 1


class HookEntry(Entry):
    """A hook as one callback of the core: it is in the table of exactly those events at which it has something to do.

    Args:
        hook: The hook.
        turns: Whose turn it is.
        place: How many act before it after an iteration.
    """

    def __init__(self, hook: HookBase, turns: Turns, place: int) -> None:
        super().__init__(turns, place)
        self.hook, self.is_started = hook, False
        if overrides_moment(hook, "before_step"):
            self.on_update_start = _calling(hook.before_step)
        if overrides_moment(hook, "after_backward"):
            setattr(self, BACKWARD_END, _calling(hook.after_backward))
        if overrides_moment(hook, "after_step"):
            self.on_update_end = self._after_step

    def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
        """Call `before_train`; a hook in which it fails does not count as started."""
        self.hook.before_train()
        self.is_started = True

    def _after_step(self, trainer: Any, **kwargs: Any) -> None:
        self._turns.done = self._place + 1
        try:
            self.hook.after_step()
        except EvaluationInterrupted:
            self._turns.done = self._place
            raise

    def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
        """Call `after_train`; what goes wrong there is raised when all hooks were called."""
        failure = self.end()
        if failure is not None:
            self._turns.failures.append(failure)

    def on_exception(self, trainer: Any, exception: BaseException, **kwargs: Any) -> None:
        """Call `after_train` in a run that died, and report with its error what goes wrong in it besides."""
        failure = self.end()
        if failure is not None:
            join_failures([exception, failure])

    def end(self) -> BaseException | None:
        """Call `after_train` once, if the hook was started; return what went wrong."""
        if not self.is_started:
            return None
        self.is_started = False
        try:
            self.hook.after_train()
        except Exception as failure:
            logger.exception("%s failed in after_train", type(self.hook).__name__)
            failure.add_note(f"raised by {type(self.hook).__name__}.after_train")
            return failure
        return None


def _calling(moment: Callable[[], None]) -> Callable[..., None]:
    return lambda trainer, **kwargs: moment()


class LogEntry(Entry):
    """Tells callbacks of a log when one is due: just before the writers write, else after all others.

    Args:
        turns: Whose turn it is.
        place: How many act before it after an iteration.
    """

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        """Log if it is time."""
        self._turns.done = self._place + 1
        trainer.log_if_due()


class FinalEntry(Entry):
    """Comes after everything that is registered."""

    def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
        """Raise what went wrong in the hooks: the first, with the others in its notes."""
        failures, self._turns.failures = self._turns.failures, []
        if failures:
            raise join_failures(failures)


def overrides_moment(hook: HookBase, moment: str) -> bool:
    """Whether a hook has something of its own to do at a moment."""
    return moment in vars(hook) or getattr(type(hook), moment) is not getattr(HookBase, moment)


def join_failures(failures: list[BaseException]) -> BaseException:
    """Return the first failure, with the others in its notes."""
    first, *others = failures
    for other in others:
        first.add_note(f"afterwards: {type(other).__name__}: {other} ({'; '.join(getattr(other, '__notes__', []))})")
    return first


# The first callback of a run in this door, and the handler in which hooks and callbacks stand in one order


class HookEvents(TrainerCallback):
    """Says at each moment where the run is, before anybody registered acts, and keeps the states of hooks.

    Args:
        face: The trainer that a user sees.
    """

    def __init__(self, face: "TrainerBase") -> None:
        self._face: TrainerBase = weakref.proxy(face)
        self._at_end = False
        self._norm: Any = None
        self._began = 0.0

    def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
        """Make sure that all processes have what acts together."""
        self._at_end, self._began = False, time.monotonic()
        trainer.print("\n".join(describe_run(trainer)))
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
        trainer.print(f"trained for {counted(trainer.progress.step, 'step')}, {clock(time.monotonic() - self._began)}")
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
