"""Stopping trials early: Optuna's pruners, asked about a trial as it is this time."""

import copy
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError, did_you_mean
from treadle.search.store.store import optuna

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.trial import FrozenTrial

    from treadle.search.store.store import Store

RUNG = "completed_rung_"
"""What the notes begin with that successive halving and Hyperband write to a trial."""

PRUNERS = ("median", "hyperband", "halving")


def make_pruner(given: Any) -> "BasePruner | None":
    """Return the pruner of a name.

    - "median" stops a trial whose best result so far is below the median of the others at that step, once five are
      complete;
    - "halving" lets a quarter of the trials reach each next rung, at 1, 4, 16, ... results;
    - "hyperband" does so with several first rungs, from 1 result up.

    Args:
        given: A name, a pruner of Optuna's, or None.

    Raises:
        ConfigError: There is no such pruner.
    """
    library = optuna()
    if given is None or isinstance(given, library.pruners.BasePruner):
        return given
    if given == "median":
        return library.pruners.MedianPruner()  # type: ignore[no-any-return]
    if given == "halving":
        return library.pruners.SuccessiveHalvingPruner(min_resource=1)  # type: ignore[no-any-return]
    if given == "hyperband":
        return library.pruners.HyperbandPruner()  # type: ignore[no-any-return]
    near = did_you_mean(str(given), PRUNERS) or f"; it knows {list(PRUNERS)}, and pruners of Optuna's"
    raise ConfigError(f"pruner={given!r} is unknown{near}")


class TrialPruner:
    """Asks a pruner about one trial, which sees nothing that it did before a kill.

    Args:
        store: Where the trials are.
        trial: The trial.
        pruner: The pruner; None never stops a trial.
    """

    def __init__(self, store: "Store", trial: "FrozenTrial", pruner: "BasePruner | None") -> None:
        self._pruner = pruner
        if pruner is None:
            return
        from treadle.search.trial.view import TrialView, study_view

        own = copy.copy(trial)
        own.intermediate_values = dict(trial.intermediate_values)
        self._view = TrialView(store.storage, store.trials, own, write_through=True)
        self._study = study_view(store.study, self._view)
        self._study.pruner = pruner
        self._first = True

    def stops(self, step: int, value: float) -> bool:
        """Return whether the trial is to stop at this result."""
        if self._pruner is None:
            return False
        if self._first:
            self._forget_from(step)
        own = self._view.own = copy.copy(self._view.own)
        own.intermediate_values = {**own.intermediate_values, step: value}
        return bool(self._pruner.prune(self._study, own))

    def _forget_from(self, step: int) -> None:
        """Drop what an attempt before a kill has left, from the step on at which this one begins."""
        self._first = False
        own = self._view.own
        own.intermediate_values = {at: value for at, value in own.intermediate_values.items() if at < step}
        if not own.intermediate_values:
            own.system_attrs = {key: value for key, value in own.system_attrs.items() if not key.startswith(RUNG)}
