"""What a trial may know of itself while it runs: its number, its folder, and how far it is to train this time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TrialContext:
    """The trial that is running.

    Attributes:
        number: Its number; None outside a search.
        run_dir: A folder of its own, the same whenever it is run again; None outside a search. Nothing is made there
            until the trial does.
        budget: How much it has been trained in all when it comes back, where trials are promoted; else None.
        max_budget: How much that is at the most.
        last_step: The step of its last report before it was paused; -1 if there was none.
        copied_from: The number of the trial whose folder this one began with, in population-based training.
    """

    number: int | None = None
    run_dir: Path | None = None
    budget: int | None = None
    max_budget: int | None = None
    last_step: int = -1
    copied_from: int | None = None

    def encoded(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "run_dir": None if self.run_dir is None else str(self.run_dir)}

    @staticmethod
    def decoded(data: Mapping[str, Any]) -> "TrialContext":
        """Return what `encoded` wrote."""
        return TrialContext(**{**data, "run_dir": None if data["run_dir"] is None else Path(data["run_dir"])})


NO_TRIAL = TrialContext()
_context: ContextVar[TrialContext] = ContextVar("the running trial", default=NO_TRIAL)


def this_trial() -> TrialContext:
    """Return the trial that is running here; outside a search, one without number, folder and budget.

    >>> this_trial().budget is None
    True
    """
    return _context.get()


@contextmanager
def trial_context(context: TrialContext) -> Iterator[None]:
    """Say inside the block which trial is running."""
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)
