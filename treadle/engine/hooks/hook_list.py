"""What is registered with a trainer of this door: hooks and callbacks, in one order."""

import inspect
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import partial
from typing import Any

from treadle.callback import EVENTS, CallbackHandler, TrainerCallback, accepting, listens
from treadle.callbacks import (
    LimitEvalStepsCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    WSDCheckpointCallback,
)
from treadle.engine.hooks.base import HookBase
from treadle.engine.hooks.events import (
    CALLBACK,
    LOG,
    MOMENTS,
    CallbackEntry,
    FinalEntry,
    HookEntry,
    LogEntry,
    Turns,
    join_failures,
    overrides_moment,
)
from treadle.errors import ConfigError, UnknownEventError
from treadle.parallel import Processes
from treadle.runs.preemption import EvaluationInterrupted

# Callbacks that can do nothing in this door, each with the reason and what to use instead


REFUSED: dict[type, str] = {
    LimitEvalStepsCallback: "evaluations are those of EvalHook here; set train.evaluation.eval_iter",
    StepBasedEvaluationCallback: "evaluations are those of EvalHook here; set train.evaluation.eval_period",
    SaveTrainingStateCallback: (
        "what it saves is for train(resume_from=...), which this door has not; set train.checkpointer.period, and "
        "resume with train.resume"
    ),
    WSDCheckpointCallback: (
        "its folders are for train(resume_from=...), which this door has not; use PeriodicCheckpointer, and "
        "trainer.checkpointer.save(name) where a decay begins"
    ),
}
"""Each class, which its subclasses share, with the reason."""


def refuse_callback(given: Any) -> None:
    """Refuse a callback, or a class of them, that would have no effect in a run of this door.

    Raises:
        ConfigError: It would not; the message has the reason.
    """
    kind = given if isinstance(given, type) else type(given)
    for refused, reason in REFUSED.items():
        if issubclass(kind, refused):
            raise ConfigError(f"{kind.__name__} does nothing in a run of treadle.engine: {reason}")


class HookList:
    """The hooks and callbacks of a trainer in the order in which they were registered.

    Attributes:
        turns: Who of them has still to act after an iteration.
    """

    def __init__(self) -> None:
        self._registered: list[Any] = []
        self._callbacks = CallbackHandler()
        self.entries: list[HookEntry] = []
        self.turns = Turns()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._registered)

    def __len__(self) -> int:
        return len(self._registered)

    def add(self, given: Any) -> Any:
        """Add a hook or a callback after the others, and return it: of a class of callbacks, an instance.

        Raises:
            TypeError: It is neither.
            ConfigError: It is the second of a class of hooks of which there may be one, or a callback that can do
                nothing in this door.
            CallbackError: It is the second of a class of callbacks.
        """
        added = self._checked_hook(given) if isinstance(given, HookBase) else self._checked_callback(given)
        self._registered.append(added)
        return added

    def _checked_hook(self, hook: HookBase) -> HookBase:
        check_moments(type(hook))
        if hook.unique and any(type(present) is type(hook) for present in self._registered):
            name = type(hook).__name__
            raise ConfigError(f"{name} is registered twice; it would act twice in every step, so leave one out")
        return hook

    def _checked_callback(self, given: Any) -> Any:
        if not is_callback(given):
            raise TypeError(
                f"register_hooks got {given!r}, which is no hook; derive its class from HookBase, or from "
                "TrainerCallback for a callback"
            )
        refuse_callback(given)
        self._callbacks.add_callback(given)
        return self._callbacks.callback_list[-1]

    def check_others(self, processes: Processes) -> None:
        """Look whether all processes have the hooks that act together; one that is alone would wait for ever.

        Raises:
            ConfigError: They have not; every process raises it.
        """
        if not processes.distributed:
            return
        own = [key for key, hook in self._keyed() if isinstance(hook, HookBase) and hook.together]
        for rank, theirs in enumerate(processes.gather_objects(own)):
            if theirs != own:
                raise ConfigError(
                    f"process {processes.rank} has the hooks {own}, and process {rank} {theirs}: all processes act in "
                    "these together, so register the same on each, in the same order"
                )

    # Into the core's table ----------------------------------------------------------------------------------

    @property
    def place_of_log(self) -> int:
        """How many are registered before the first that writes; that is where a log belongs."""
        writers = [place for place, one in enumerate(self._registered) if getattr(one, "writes", False)]
        return min(writers, default=len(self._registered))

    def table(self, place_of_log: int) -> list[Any]:
        """Return the callbacks of a core that stand for what is registered, anew for each run.

        Args:
            place_of_log: Before which of them the log comes; the same on all processes.
        """
        self.turns.keys.clear()
        self.entries = []
        found: list[Any] = []
        for place, (key, one) in enumerate(self._keyed()):
            if place == place_of_log:
                found += self._log()
            found += self.entries_of(key, one)
        if place_of_log >= len(self._registered):
            found += self._log()
        self.turns.done = len(self.turns.keys)
        return [*found, FinalEntry(self.turns, len(self.turns.keys))]

    def _log(self) -> list[Any]:
        entry = LogEntry(self.turns, len(self.turns.keys))
        self.turns.keys.append(LOG)
        return [entry]

    def entries_of(self, key: str, one: Any) -> list[Any]:
        """Return what stands in the table for something registered."""
        place = len(self.turns.keys)
        if isinstance(one, HookBase):
            if overrides_moment(one, "after_step"):
                self.turns.keys.append(key)
            self.entries.append(HookEntry(one, self.turns, place))
            return [self.entries[-1]]
        if not listens(one, "on_update_end"):
            return [one]
        self.turns.keys.append(key)
        return [CallbackEntry(self.turns, place), one]

    def late_entries(self, one: Any) -> list[Any]:
        """Return what stands in the table for something that is registered while the run is under way."""
        done = self.turns.done == len(self.turns.keys)
        found = self.entries_of(next(key for key, other in self._keyed() if other is one), one)
        if done:
            self.turns.done = len(self.turns.keys)
        return found

    def catch_up(self, core: Any) -> None:
        """Let those act that had still to, in the last iteration before the checkpoint."""
        turns, known = self.turns, dict(self._keyed())
        while turns.resumed:
            key = turns.resumed[0]
            if key == LOG:
                turns.resumed.pop(0)
                core.log_if_due()
            elif key in known and isinstance(known[key], HookBase):
                self._catch_up_with(core, known[key].after_step)
            elif key in known:
                self._catch_up_with(core, partial(accepting(known[key].on_update_end), core))
            else:
                turns.resumed.pop(0)

    def _catch_up_with(self, core: Any, act: Callable[[], None]) -> None:
        key = self.turns.resumed.pop(0)
        try:
            core.defer_stop(act)
        except EvaluationInterrupted:
            self.turns.resumed.insert(0, key)
            raise

    def end_all(self) -> None:
        """Call `after_train` of every hook that is started.

        Raises:
            BaseException: The first that went wrong, with the others in its notes, when all were called.
        """
        failures = [failure for entry in self.entries if (failure := entry.end()) is not None]
        if failures:
            raise join_failures(failures)

    def _keyed(self) -> list[tuple[str, Any]]:
        """Return each hook with its class name, numbered from the second of a class on, and callbacks with theirs."""
        counts: dict[str, int] = {}
        pairs = []
        for one in self._registered:
            name = type(one).__qualname__ if isinstance(one, HookBase) else f"{CALLBACK}{type(one).__name__}"
            counts[name] = counts.get(name, 0) + 1
            pairs.append((name if counts[name] == 1 else f"{name} {counts[name]}", one))
        return pairs

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all hooks, and who has still to act in this iteration."""
        states = {key: hook.state_dict() for key, hook in self._keyed() if isinstance(hook, HookBase)}
        return {"states": {key: state for key, state in states.items() if state}, "unfinished": self.turns.unfinished}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand each hook its state; one that is new to the run keeps its own."""
        for key, hook in self._keyed():
            if key in state["states"]:
                hook.load_state_dict(state["states"][key])
        self.turns.resumed = list(state["unfinished"])
        self.turns.done = len(self.turns.keys)


def is_callback(given: Any) -> bool:
    """Whether something is a callback of the core, or a class of them."""
    kind = given if isinstance(given, type) else type(given)
    return issubclass(kind, TrainerCallback) or any(listens(given, event) for event in EVENTS)


def check_moments(kind: type[HookBase]) -> None:
    """Refuse a class of hooks with a method that looks like a moment of a run, and is none.

    Raises:
        UnknownEventError: It has one.
    """
    for name in dir(kind):
        method = getattr(kind, name, None)
        if name in MOMENTS or hasattr(HookBase, name) or name.startswith("_") or not inspect.isroutine(method):
            continue
        near = get_close_matches(name, MOMENTS, n=1, cutoff=0.85)
        if near or name.startswith(("before_", "after_", "on_")):
            remedy = f"; did you mean {near[0]!r}?" if near else f"; hooks have {list(MOMENTS)}"
            raise UnknownEventError(
                f"{kind.__name__}.{name} would never be called{remedy}; give a method that is no moment of a run "
                "another name"
            )
