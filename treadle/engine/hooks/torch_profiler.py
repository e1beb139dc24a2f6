"""Records what chosen iterations spend their time on."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.callbacks.profiler import started_profiler, write_trace
from treadle.engine.hook_base import HookBase

logger = logging.getLogger(__name__)


class TorchProfiler(HookBase):
    """Profiles the iterations that a function chooses, each into a trace for chrome://tracing or TensorBoard.

    Args:
        enable_predicate: Called with the trainer before each iteration; True profiles it.
        output_dir: Where the traces go.
        activities: What to record; by default the CPU, and CUDA if there is one.
        save_tensorboard: Whether traces are written where TensorBoard's profiler plugin looks for them.
    """

    def __init__(
        self,
        enable_predicate: Callable[[Any], bool],
        output_dir: str,
        *,
        activities: Any = None,
        save_tensorboard: bool = True,
    ) -> None:
        self._wanted = enable_predicate
        self._folder = Path(output_dir)
        self._activities = activities
        self._tensorboard = save_tensorboard
        self._profiler: Any = None

    def before_step(self) -> None:
        """Start to record if this iteration was chosen."""
        if not self._wanted(self.trainer):
            return
        everything = dict.fromkeys(("record_shapes", "profile_memory", "with_stack", "with_flops"), True)
        self._profiler = started_profiler(self._activities, **everything)

    def after_step(self) -> None:
        """Write the trace."""
        profiler = self._stop()
        if profiler is None:
            return
        name = f"profiler-trace-iter{self.trainer.iter}"
        path = self._folder / (f"{name}.pt.trace.json" if self._tensorboard else f"{name}.json")
        write_trace(profiler, path)
        logger.info("wrote a profile of iteration %d to %s", self.trainer.iter, path)

    def after_train(self) -> None:
        """Stop recording, if the run died in the middle."""
        self._stop()

    def _stop(self) -> Any:
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()
        return profiler
