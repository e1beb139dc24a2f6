"""What stands in the core's table for what is registered, and whose turn it is after an iteration."""

import logging
from collections.abc import Callable
from typing import Any

from treadle.engine.hook_base import HookBase
from treadle.leaving import EvaluationLeft

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


class CallbackTurn(Entry):
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
        if acts_at(hook, "before_step"):
            self.on_update_start = _calling(hook.before_step)
        if acts_at(hook, "after_backward"):
            setattr(self, BACKWARD_END, _calling(hook.after_backward))
        if acts_at(hook, "after_step"):
            self.on_update_end = self._after_step

    def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
        """Call `before_train`; a hook in which it fails does not count as started."""
        self.hook.before_train()
        self.is_started = True

    def _after_step(self, trainer: Any, **kwargs: Any) -> None:
        self._turns.done = self._place + 1
        try:
            self.hook.after_step()
        except EvaluationLeft:
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


class DueLog(Entry):
    """Tells callbacks of a log when one is due: just before the writers write, else after all others.

    Args:
        turns: Whose turn it is.
        place: How many act before it after an iteration.
    """

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        """Log if it is time."""
        self._turns.done = self._place + 1
        trainer.log_if_due()


class LastOfAll(Entry):
    """Comes after everything that is registered."""

    def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
        """Raise what went wrong in the hooks: the first, with the others in its notes."""
        failures, self._turns.failures = self._turns.failures, []
        if failures:
            raise join_failures(failures)


def acts_at(hook: HookBase, moment: str) -> bool:
    """Whether a hook has something of its own to do at a moment."""
    return moment in vars(hook) or getattr(type(hook), moment) is not getattr(HookBase, moment)


def join_failures(failures: list[BaseException]) -> BaseException:
    """Return the first failure, with the others in its notes."""
    first, *others = failures
    for other in others:
        first.add_note(f"afterwards: {type(other).__name__}: {other} ({'; '.join(getattr(other, '__notes__', []))})")
    return first
