"""Cuts evaluations short."""

from typing import TYPE_CHECKING, Any

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.loop.interfaces import RunningTrainer

if TYPE_CHECKING:
    from treadle.data import Stream


class LimitEvalStepsCallback(TrainerCallback):
    """Ends evaluations after some batches.

    Args:
        num_eval_steps: The most batches of an evaluation on each process.
        limit_intermediate_only: Whether only evaluations within an epoch are cut short.
    """

    def __init__(self, num_eval_steps: int, limit_intermediate_only: bool = True) -> None:
        if num_eval_steps < 1:
            raise ConfigError(f"LimitEvalStepsCallback: num_eval_steps={num_eval_steps} must be at least 1")
        self.num_eval_steps = num_eval_steps
        self.limit_intermediate_only = limit_intermediate_only
        self._limited: tuple[Stream, int | None] | None = None

    def on_eval_epoch_start(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Set the limit on the evaluation data."""
        stream = trainer._eval_dataloader
        if stream is None or (self.limit_intermediate_only and not is_intermediate):
            return
        self._limited = (stream, stream.limit)
        stream.limit = self.num_eval_steps if stream.limit is None else min(stream.limit, self.num_eval_steps)

    def on_eval_epoch_end(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Give the evaluation data the limit back that it had."""
        self._restore()

    def close(self) -> None:
        """Give the limit back if an evaluation was broken off."""
        self._restore()

    def _restore(self) -> None:
        if self._limited is not None:
            stream, limit = self._limited
            stream.limit, self._limited = limit, None
