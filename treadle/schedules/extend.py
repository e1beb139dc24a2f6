"""Going on with a schedule when the run it belongs to has become longer."""

from copy import deepcopy
from typing import Any, Literal

from treadle.errors import CheckpointError

Extend = Literal["stretch", "hold"]

HELD = "held at"

SCHEDULED = ("lr", "initial_lr", "max_lr", "min_lr", "momentum", "betas", "base_momentum", "max_momentum")
"""What a scheduler changes in the groups of an optimizer."""

MOVING = (
    *("last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "base_lrs"),
    *("best", "num_bad_epochs", "lr_lambdas", "is_continuation", "cooldown_counter", "T_cur", "T_i", "num_updates"),
)
"""What changes in a scheduler's state while it runs; everything else is how it was set up."""


def schedule_settings(state: Any, where: str = "") -> dict[str, Any]:
    """Return what of a scheduler's state is how it was set up: numbers and words, by their place in it."""
    found: dict[str, Any] = {}
    entries = state.items() if isinstance(state, dict) else enumerate(state)
    for key, value in entries:
        name = f"{where}{key}"
        if key in MOVING:
            continue
        if isinstance(value, (dict, list, tuple)):
            found |= schedule_settings(value, f"{name}.")
        elif isinstance(value, (int, float, str)):
            found[name] = value
    return found


def fit_schedule(
    scheduler: Any,
    saved: dict[str, Any] | None,
    *,
    saved_steps: int | None,
    steps: int | None,
    extend: str | None,
    taken: int,
    limit: int | None,
) -> Any:
    """Return the scheduler to go on with, ready to take the state that an earlier run saved.

    Args:
        scheduler: The scheduler built for this run; None if it has none.
        saved: Its state in the checkpoint.
        saved_steps: How many steps the run that saved it was to have.
        steps: How many this one is to have.
        extend: What to do with a schedule that was set up for another length.
        taken: How often the saved one had moved.
        limit: How often it was to move in all, for one that is held.

    Raises:
        CheckpointError: The schedule depends on the length of the run, which changed, and `extend` is None; or
            it was changed otherwise.
    """
    if scheduler is None or saved is None:
        return scheduler
    if HELD in saved:
        return HeldSchedule(scheduler, saved[HELD], taken)
    changed = _changes(schedule_settings(saved), schedule_settings(scheduler.state_dict()))
    if not changed:
        return scheduler
    kind = type(scheduler).__name__
    if saved_steps == steps:
        raise CheckpointError(f"the {kind} of this run was set up otherwise: {changed}")
    if extend == "hold":
        return HeldSchedule(scheduler, taken if limit is None else limit, taken)
    if extend == "stretch":
        return StretchedSchedule(scheduler, taken)
    raise CheckpointError(
        f"the run was to have {saved_steps} steps and now has {steps}, and {kind} depends on that ({changed}); "
        "pass extend='stretch' to follow the longer schedule from here, or extend='hold' to keep the last rate "
        "of the old one"
    )


def _changes(old: dict[str, Any], new: dict[str, Any]) -> str:
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    return "; ".join(f"{key}: {old.get(key)} then, {new.get(key)} now" for key in keys)


class _Extended:
    """A scheduler for a run that became longer; steps and rates are those of the one inside."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.optimizer = scheduler.optimizer

    def step(self, *arguments: Any) -> None:
        """Move on by one step."""
        self.scheduler.step(*arguments)

    def get_last_lr(self) -> list[float]:
        """Return the rates in force."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler inside."""
        state: dict[str, Any] = self.scheduler.state_dict()
        return state


class StretchedSchedule(_Extended):
    """A scheduler that follows its own, longer set-up from the place that a shorter one had reached.

    The place is found by going there from the start: a few microseconds for each step, whatever the scheduler.

    Args:
        scheduler: The scheduler, as it was built.
        taken: How often the shorter one had moved.
    """

    def __init__(self, scheduler: Any, taken: int) -> None:
        super().__init__(scheduler)
        self._fresh = deepcopy(scheduler.state_dict())
        self._groups = [{key: group[key] for key in SCHEDULED if key in group} for group in self._all_groups()]
        self._taken = taken

    def _all_groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the place; `state`, which is that of the shorter schedule, has nothing else to say."""
        self.go_to(self._taken)

    def go_to(self, taken: int) -> None:
        """Go to where the scheduler is after `taken` moves from its start."""
        self.scheduler.load_state_dict(deepcopy(self._fresh))
        for group, values in zip(self._all_groups(), self._groups, strict=True):
            group.update(values)
        # Torch warns of schedulers that move before their optimizer, which has not moved in this process.
        self.optimizer._opt_called = True
        for _ in range(taken):
            self.scheduler.step()


class HeldSchedule(_Extended):
    """A scheduler that stands still at the end it was set up for, while the run continues.

    Args:
        scheduler: The scheduler; its set-up comes back with the saved state.
        limit: After how many moves it stands still.
        taken: How often it had moved.
    """

    def __init__(self, scheduler: Any, limit: int, taken: int) -> None:
        super().__init__(scheduler)
        self._limit = limit
        self._taken = taken

    def step(self, *arguments: Any) -> None:
        """Move on, unless the schedule is at its end."""
        self._taken += 1
        if self._taken <= self._limit:
            self.scheduler.step(*arguments)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler inside, and where it stands still."""
        return {HELD: self._limit, "taken": self._taken, "inside": self.scheduler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a held schedule, or of one that is held from now on."""
        inside = state["inside"] if HELD in state else state
        self._taken = int(state["taken"]) if HELD in state else self._taken
        self.scheduler.load_state_dict(deepcopy(inside))
        if hasattr(self.scheduler, "stretch") and inside.get("total_steps"):
            self.scheduler.stretch(inside["total_steps"])
