"""The hooks of a trainer, and how each of their moments is gone through."""

import inspect
import logging
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from treadle.engine.hook_base import HookBase
from treadle.errors import ConfigError, StopTrainingError, UnknownEventError
from treadle.leaving import EvaluationLeft
from treadle.parallel import Processes

logger = logging.getLogger(__name__)

MOMENTS = ("before_train", "before_step", "after_step", "after_train")
"""The moments of a run at which hooks are called."""


class HookList:
    """The hooks of a trainer in their order, and which of them have still to act.

    Attributes:
        unfinished: The keys of the hooks whose `after_step` of this iteration is still to come. A checkpoint that a
            hook writes is taken between two hooks; a run that is resumed from it begins with these.
    """

    def __init__(self) -> None:
        self._hooks: list[HookBase] = []
        self._started: list[HookBase] = []
        self.unfinished: list[str] = []

    def __iter__(self) -> Any:
        return iter(self._hooks)

    def __len__(self) -> int:
        return len(self._hooks)

    def add(self, hook: Any) -> None:
        """Add a hook after the others.

        Raises:
            TypeError: It is no hook.
            ConfigError: It is the second of a class of which there may be one.
        """
        if not isinstance(hook, HookBase):
            raise TypeError(f"register_hooks got {hook!r}, which is no hook; derive its class from HookBase")
        check_moments(type(hook))
        if hook.unique and any(type(present) is type(hook) for present in self._hooks):
            name = type(hook).__name__
            raise ConfigError(f"{name} is registered twice; it would act twice in every step, so leave one out")
        self._hooks.append(hook)

    def check_others(self, processes: Processes) -> None:
        """Look whether all processes have the hooks that act together; one that is alone would wait for ever.

        Raises:
            ConfigError: They have not; every process raises it.
        """
        if not processes.distributed:
            return
        own = [key for key, hook in self._keyed() if hook.together]
        for rank, theirs in enumerate(processes.gather_objects(own)):
            if theirs != own:
                raise ConfigError(
                    f"process {processes.rank} has the hooks {own}, and process {rank} {theirs}: all processes act in "
                    "these together, so register the same on each, in the same order"
                )

    def start(self) -> None:
        """Call `before_train`; a hook in which it fails does not count as started."""
        self._started = []
        for hook in self._hooks:
            hook.before_train()
            self._started.append(hook)

    def before_step(self, on_stop: Callable[[str], None]) -> None:
        """Call `before_step` of all hooks."""
        for hook in self._hooks:
            _act(hook.before_step, on_stop)

    def after_step(self, on_stop: Callable[[str], None], only: Iterable[str] | None = None) -> None:
        """Call `after_step` of all hooks, or of those with the keys `only`."""
        keyed = [(key, hook) for key, hook in self._keyed() if only is None or key in only]
        self.unfinished = [key for key, _ in keyed]
        for key, hook in keyed:
            self.unfinished.remove(key)
            try:
                _act(hook.after_step, on_stop)
            except EvaluationLeft:
                self.unfinished.insert(0, key)
                raise

    def finish(self) -> None:
        """Call `after_train` of every hook that started, once.

        Raises:
            Exception: The first that went wrong, with the others in its notes, when all were called.
        """
        started, self._started = self._started, []
        failures: list[BaseException] = []
        for hook in started:
            try:
                hook.after_train()
            except Exception as failure:
                logger.exception("%s failed in after_train", type(hook).__name__)
                failure.add_note(f"raised by {type(hook).__name__}.after_train")
                failures.append(failure)
        if failures:
            raise join_failures(failures)

    def _keyed(self) -> list[tuple[str, HookBase]]:
        """Return each hook with its class name, numbered from the second of a class on."""
        counts: dict[str, int] = {}
        pairs = []
        for hook in self._hooks:
            name = type(hook).__qualname__
            counts[name] = counts.get(name, 0) + 1
            pairs.append((name if counts[name] == 1 else f"{name} {counts[name]}", hook))
        return pairs

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all hooks, and which of them have still to act in this iteration."""
        states = {key: hook.state_dict() for key, hook in self._keyed()}
        return {"states": {key: state for key, state in states.items() if state}, "unfinished": list(self.unfinished)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand each hook its state; one that is new to the run keeps its own."""
        for key, hook in self._keyed():
            if key in state["states"]:
                hook.load_state_dict(state["states"][key])
        self.unfinished = list(state["unfinished"])


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


def _act(moment: Callable[[], None], on_stop: Callable[[str], None]) -> None:
    """Call a hook; a wish to stop is a request, so that the hooks after it still act in this step."""
    try:
        moment()
    except StopTrainingError as error:
        on_stop(str(error) or "a hook asked to stop")


def join_failures(failures: list[BaseException]) -> BaseException:
    """Return the first failure, with the others in its notes."""
    first, *others = failures
    for other in others:
        first.add_note(f"afterwards: {type(other).__name__}: {other} ({'; '.join(getattr(other, '__notes__', []))})")
    return first
