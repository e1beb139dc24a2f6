"""A hook made of functions."""

from collections.abc import Callable
from typing import Any

from treadle.engine.hook_base import HookBase

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
