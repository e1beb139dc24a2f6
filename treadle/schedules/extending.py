"""Going on with a schedule when the run it belongs to has become longer."""

from typing import Any, Literal

from treadle.errors import CheckpointError

Extend = Literal["stretch", "hold"]

HELD = "held at"

MOVING = (
    *("last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "base_lrs"),
    *("best", "num_bad_epochs", "cooldown_counter", "T_cur", "T_i", "num_updates"),
)
"""What changes in a scheduler's state while it runs; everything else is how it was set up."""


def settings_of(state: dict[str, Any]) -> dict[str, Any]:
    """Return what of a scheduler's state is how it was set up: plain numbers and words only."""
    return {key: value for key, value in state.items() if key not in MOVING and isinstance(value, (int, float, str))}


def fit_schedule(
    scheduler: Any, saved: dict[str, Any] | None, saved_steps: int | None, steps: int | None, extend: str | None
) -> Any:
    """Return the scheduler to go on with, ready to take the state that an earlier run saved.

    Args:
        scheduler: The scheduler built for this run; None if it has none.
        saved: Its state in the checkpoint.
        saved_steps: How many steps the run that saved it was to have.
        steps: How many this one is to have.
        extend: What to do with a schedule that was set up for another length.

    Raises:
        CheckpointError: The schedule depends on the length of the run, which changed, and `extend` is None; or
            it was changed otherwise.
    """
    if scheduler is None or saved is None:
        return scheduler
    if HELD in saved:
        return HeldSchedule(scheduler, saved[HELD])
    changed = _changes(settings_of(saved), settings_of(scheduler.state_dict()))
    if not changed:
        return scheduler
    kind = type(scheduler).__name__
    if saved_steps == steps:
        raise CheckpointError(f"the {kind} of this run was set up otherwise: {changed}")
    if extend == "hold":
        return HeldSchedule(scheduler, saved_steps or 0)
    if extend == "stretch":
        return StretchedSchedule(scheduler)
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
    """A scheduler that keeps its own, longer set-up and takes only its place from a saved one."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the place, and set the rate that the longer schedule has there."""
        own = settings_of(self.scheduler.state_dict())
        self.scheduler.load_state_dict({**state, **own})
        closed_form = getattr(self.scheduler, "_get_closed_form_lr", None)
        if closed_form is not None:
            for group, rate in zip(self.optimizer.param_groups, closed_form(), strict=True):
                group["lr"] = rate


class HeldSchedule(_Extended):
    """A scheduler that stands still at the end it was set up for, while the run goes on.

    Args:
        scheduler: The scheduler; its set-up comes back with the saved state.
        steps: After how many steps it stands still.
    """

    def __init__(self, scheduler: Any, steps: int) -> None:
        super().__init__(scheduler)
        self.steps = steps
        self._taken: int | None = None

    def step(self, *arguments: Any) -> None:
        """Move on, unless the schedule is at its end."""
        if self._taken is not None and self._taken < self.steps:
            self._taken += 1
            self.scheduler.step(*arguments)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler inside, and where it stands still."""
        return {HELD: self.steps, "taken": self._taken, "inside": self.scheduler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a held schedule, or of one that is held from now on."""
        inside = state["inside"] if HELD in state else state
        self.scheduler.load_state_dict(inside)
        if hasattr(self.scheduler, "stretch") and inside.get("total_steps"):
            self.scheduler.stretch(inside["total_steps"])
        place = inside.get("last_epoch", inside.get("num_updates", 0))
        self._taken = int(state["taken"]) if HELD in state else int(place)
