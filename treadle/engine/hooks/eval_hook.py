"""Evaluates now and then, and at the end."""

from collections.abc import Callable, Mapping
from typing import Any

from treadle.data import RandomState
from treadle.engine import dist
from treadle.engine.hook_base import HookBase
from treadle.errors import ConfigError
from treadle.events import flatten_results


class EvalHook(HookBase):
    """Calls a function every so many iterations, and once more at the end, and reports the numbers it returns.

    Nested dicts are reported as `a/b/c`. Callbacks are told before and after it, as of an evaluation within an epoch.
    No random generator that the training draws from is moved. On several processes the function finds the same model
    on each, with the buffers of the first.

    Args:
        eval_period: Iterations between two evaluations; 0 evaluates at the end only.
        eval_function: Called without arguments, returns numbers by name, or nested dicts of them.
        eval_after_train: Whether to evaluate at the end of a run that did not fail.
    """

    together = evaluates = True

    def __init__(self, eval_period: int, eval_function: Callable[[], Any], eval_after_train: bool = True) -> None:
        if eval_period < 0:
            raise ConfigError(f"eval_period={eval_period} must be 0, for the end only, or a number of iterations")
        self._period = eval_period
        self._function = eval_function
        self._at_end = eval_after_train
        self._evaluated_at = -1

    def before_train(self) -> None:
        """Forget what an earlier run evaluated."""
        self._evaluated_at = -1

    def after_step(self) -> None:
        """Evaluate if it is time; the last time is left to the end."""
        done = self.trainer.iter + 1
        if self._period and done % self._period == 0 and done < self.trainer.max_iter:
            self._evaluate(done)

    def after_train(self) -> None:
        """Evaluate at the end, unless the run failed or was stopped right after an evaluation."""
        if self._at_end and self.trainer.failure is None and self._evaluated_at != self.trainer.iter:
            self._evaluate(self.trainer.iter)

    def _evaluate(self, done: int) -> None:
        random = RandomState()
        before = random.state_dict()
        core = self.trainer.core
        core.parallel.share_buffers(core.model)
        core.fire("on_eval_epoch_start", is_intermediate=True)
        try:
            results = self._function()
        finally:
            random.load_state_dict(before)
        # Its own as well: another hook may have evaluated something else here.
        self.trainer.evaluated_at = self._evaluated_at = done
        if results is not None:
            if not isinstance(results, Mapping):
                raise ConfigError(f"the evaluation returned a {type(results).__name__}; return a dict of numbers")
            for name, value in flatten_results(results).items():
                if name not in self.trainer.evaluated:
                    self.trainer.evaluated.append(name)
                self.trainer.storage.put_scalar(name, value, smoothing_hint=False)
        core.fire("on_eval_epoch_end", is_intermediate=True)
        # Evaluation may take unequal time on the processes; the step that follows is made together.
        dist.synchronize()
