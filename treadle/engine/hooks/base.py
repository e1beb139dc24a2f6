"""What every hook of the config-driven door is: five moments of a run, and a state."""

from collections.abc import Callable
from typing import Any


class HookBase:
    """The parent of every hook: override the moments to act at.

    Hooks are called in the order in which they were registered, at every moment. `self.trainer` is the trainer they
    are registered with; it is a weak reference, so that a hook keeps no trainer alive.

    The order of a run:

        hook.before_train()
        for iter in range(start_iter, max_iter):
            hook.before_step()
            trainer.run_step()  # within it, hook.after_backward()
            hook.after_step()
        iter += 1
        hook.after_train()

    `after_train` is called however the run ended, once, for each hook whose `before_train` came through;
    `self.trainer.failure` is the error the run died of, None if it did not. A wish to stop is
    `self.trainer.request_stop(reason)`: the loop ends after the current step, in good order.

    A method of another name that begins with `before_`, `after_` or `on_`, which nobody would call, is refused when the
    hook is registered.
    """

    trainer: Any = None
    """The trainer, once the hook is registered."""

    unique: bool = False
    """Whether a trainer takes only one hook of this class."""

    together: bool = False
    """Whether it does what all processes must do together, so that each of them must have it."""

    evaluates: bool = False
    """Whether it has the model evaluated, so that there is something to watch for callbacks."""

    writes: bool = False
    """Whether it writes what was reported, so that callbacks are told of a log before it acts."""

    def attach(self, trainer: Any) -> None:
        """Belong to `trainer`, which is a weak reference."""
        self.trainer = trainer

    def before_train(self) -> None:
        """Called before the first iteration."""

    def after_train(self) -> None:
        """Called after the last iteration, however it ended."""

    def before_step(self) -> None:
        """Called before each iteration, before its data is fetched."""

    def after_backward(self) -> None:
        """Called when the gradient of an iteration is that of its whole batch, before it is clipped and used."""

    def after_step(self) -> None:
        """Called after each iteration."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a restart."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""


# A hook made of functions


Moment = Callable[[Any], None]


class CallbackHook(HookBase):
    """Calls functions with the trainer; for a hook that is not worth a class.

    Args:
        before_train: Called before the first iteration.
        after_train: Called after the last, however it ended.
        before_step: Called before each iteration.
        after_step: Called after each iteration.
    """

    def __init__(
        self,
        *,
        before_train: Moment | None = None,
        after_train: Moment | None = None,
        before_step: Moment | None = None,
        after_step: Moment | None = None,
    ) -> None:
        self._before_train = before_train
        self._after_train = after_train
        self._before_step = before_step
        self._after_step = after_step

    def before_train(self) -> None:
        """Call the function given for it."""
        self._call(self._before_train)

    def after_train(self) -> None:
        """Call the function given for it."""
        self._call(self._after_train)

    def before_step(self) -> None:
        """Call the function given for it."""
        self._call(self._before_step)

    def after_step(self) -> None:
        """Call the function given for it."""
        self._call(self._after_step)

    def _call(self, function: Moment | None) -> None:
        if function is not None:
            function(self.trainer)
