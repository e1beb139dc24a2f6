"""What is due after which step and epoch of a run."""

import math
from typing import NamedTuple

from treadle.progress import Cadence
from treadle.spec import RunSpec

AGREEMENT_STEPS = 10
"""How many steps several processes go before they ask each other whether one wants to stop."""


class DueNow(NamedTuple):
    """What is due after a step.

    Attributes:
        log: Whether scalars are read from the device.
        evaluate: Whether the run is evaluated.
        save: Whether it is saved.
        leave: Whether to look if a signal came.
        agree: Whether the processes ask each other if one wants to stop.
    """

    log: bool
    evaluate: bool
    save: bool
    leave: bool
    agree: bool


class Due:
    """When a run logs, evaluates, saves and ends; without arguments nothing is ever due by itself.

    What is due by steps is kept as numbers, which a step compares without asking anybody; 0 is never.

    Args:
        last: The most updates that the run makes; None is any number.
        log: How often scalars are read from the device.
        evaluate: How often the run is evaluated.
        save: How often it is saved.
        agree: After how many steps several processes ask each other whether one wants to stop.

    Attributes:
        last_step: The step after which the run ends.
        next_step: The first step after which anything is due.
    """

    def __init__(
        self,
        *,
        last: int | None = None,
        log: Cadence | None = None,
        evaluate: Cadence | None = None,
        save: Cadence | None = None,
        agree: int = 0,
    ) -> None:
        self.last_step: float = math.inf if last is None else last
        self.next_step: float = 0
        self._log, self._evaluate, self._save, self._agree = log, evaluate, save, agree
        self._custom_loop = self._told_of_rounding = False

    @classmethod
    def of(cls, spec: RunSpec, *, evaluates: bool, alone: bool) -> "Due":
        """Return what is due in a run by what it was asked to do.

        Args:
            spec: What that is.
            evaluates: Whether there is anything to evaluate on.
            alone: Whether there is one process, which need not ask others.
        """
        return cls(
            last=spec.max_steps,
            log=spec.log_every,
            evaluate=spec.eval_every if evaluates else None,
            save=spec.save_every,
            agree=0 if alone else AGREEMENT_STEPS,
        )

    def wake(self) -> None:
        """Have the loop look at what is due after the next step; called from other threads and signal handlers."""
        # One assignment and no lock: a signal handler runs between any two instructions of the loop.
        self.next_step = 0

    def after_step(self, step: int) -> DueNow:
        """Return what is due after a step, and note when anything is due again."""
        log, evaluate, save = (_in_steps(one) for one in (self._log, self._evaluate, self._save))
        everies = [every for every in (log, evaluate, save, self._agree) if every]
        self.next_step = min(((step // every + 1) * every for every in everies), default=math.inf)
        agree = bool(self._agree) and step % self._agree == 0
        return DueNow(
            log=bool(log) and step % log == 0,
            evaluate=bool(evaluate) and step % evaluate == 0,
            save=bool(save) and step % save == 0,
            # To look if a signal came is a collective where there are several processes; alone it costs nothing.
            leave=agree or not self._agree,
            agree=agree,
        )

    # Epochs -------------------------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """Take note that an epoch begins, by the loop of the trainer until somebody says otherwise."""
        self._custom_loop = False

    def note_custom_loop(self) -> str | None:
        """Take note that the epoch was a loop of the user's; return once what that means for what is due by steps."""
        self._custom_loop = True
        by_steps = {"eval_every": self._evaluate, "save_every": self._save}
        rounded = [f"{name}='{cadence}'" for name, cadence in by_steps.items() if _in_steps(cadence)]
        if not rounded or self._told_of_rounding:
            return None
        self._told_of_rounding = True
        return f"{' and '.join(rounded)} round up to the end of an epoch: its loop is your own"

    def logs_after(self, epochs: int) -> bool:
        """Whether the end of an epoch is logged: always, unless logs come by epochs and it is not time."""
        return self._log is None or self._log.unit == "steps" or self._log.due_after_epoch(epochs)

    def evaluates_after(self, epochs: int, steps: tuple[int, int]) -> bool:
        """Whether it is time to evaluate after an epoch.

        Args:
            epochs: The epochs that are done, this one included.
            steps: The steps before the epoch, and those after it.
        """
        return self._is_due_after(self._evaluate, epochs, steps)

    def saves_after(self, epochs: int, steps: tuple[int, int]) -> bool:
        """Whether it is time to save after an epoch; the arguments are those of `evaluates_after`."""
        return self._is_due_after(self._save, epochs, steps)

    def _is_due_after(self, cadence: Cadence | None, epochs: int, steps: tuple[int, int]) -> bool:
        """Whether a time by epochs has come, or one by steps came inside a loop that could not be left for it."""
        if cadence is None:
            return False
        before, now = steps
        every = cadence.in_steps if self._custom_loop else 0
        return cadence.due_after_epoch(epochs) or (every > 0 and now // every > before // every)


def _in_steps(cadence: Cadence | None) -> int:
    return 0 if cadence is None else cadence.in_steps
