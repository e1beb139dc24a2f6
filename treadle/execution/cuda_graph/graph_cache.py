"""The recorded steps of a run: which there are, and when it is time for another."""

from typing import Any

from torch.optim import Optimizer

from treadle.execution.cuda_graph.capture import CapturedStep
from treadle.execution.cuda_graph.inputs import Signature

WARM_UP = 3
"""Ordinary steps before the first one is recorded: optimizers make their state, libraries choose their kernels."""
BUDGET = 16
"""How many recordings are kept at a time; windows that fit none of them run step by step."""
REPAID = 10
"""How many replays a recording takes to save the time that it took to make."""

Key = tuple[str, Signature]
"""What a recording is for: the name of a phase and the shape of its windows."""


class GraphCache:
    """Recorded steps by phase and shape of window.

    A shape is recorded when it keeps coming with the same arguments of the optimizer. Arguments that change with each
    step would otherwise cost a recording for each, and those that change with each epoch one for every shape that
    comes once in it, such as the short last batch.

    Attributes:
        made: How many recordings were made, those included that are gone.
        restless: How many windows in a row came with other arguments than those of their shape before.
    """

    def __init__(self) -> None:
        self.made = 0
        self.clear()

    def clear(self) -> None:
        """Drop every recording, and begin to warm up again."""
        self._steps: dict[Key, list[CapturedStep]] = {}
        self._met: dict[Key, tuple[list[list[Any]], int]] = {}
        self._checked: set[Key] = set()
        self.restless = 0

    @property
    def count(self) -> int:
        """How many recordings there are."""
        return sum(map(len, self._steps.values()))

    @property
    def phases(self) -> list[str]:
        """The names of the phases that have recordings."""
        return sorted({name for name, _ in self._steps})

    def find(self, key: Key, optimizer: Optimizer) -> CapturedStep | None:
        """Return the recording for windows of this shape with the arguments that `optimizer` has now."""
        return next((step for step in self._steps.get(key, ()) if step.fits(optimizer)), None)

    def is_time(self, key: Key, arguments: list[list[Any]]) -> bool:
        """Count a window that no recording fits, and return whether to record it."""
        before, count = self._met.get(key, (arguments, 0))
        if not any(name == key[0] for name, _ in self._checked):
            # The first recording of a phase is also a test of its step, whatever the arguments are.
            self._met[key] = (arguments, count + 1)
            return count >= WARM_UP
        same = before == arguments
        self.restless = 0 if same else self.restless + 1
        self._met[key] = (arguments, count + 1 if same else 1)
        # Once is enough for the kernels of a new shape: the optimizer has its state.
        return same and count >= 1

    def is_checked(self, key: Key) -> bool:
        """Whether a recording of this phase and shape was compared with ordinary steps."""
        return key in self._checked

    def add(self, key: Key, step: CapturedStep) -> None:
        """Keep a recording, which agrees with ordinary steps."""
        self._steps.setdefault(key, []).append(step)
        self._checked.add(key)
        self.made += 1

    def make_room(self) -> bool:
        """Return whether one more recording may be kept; if need be, drop those whose arguments are of the past.

        Those that did not save their own cost stay. Where arguments change faster than recordings pay, the budget
        is soon used up and ordinary steps, which are cheaper then, are what is left.
        """
        if self.count >= BUDGET:
            for key, steps in self._steps.items():
                self._steps[key] = [step for step in steps if step.replays < REPAID or step.fits(step.optimizer)]
        return self.count < BUDGET
