"""Records what chosen iterations spend their time on."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import profiler

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
        options: dict[str, Any] = {
            "record_shapes": True,
            "profile_memory": True,
            "with_stack": True,
            "with_flops": True,
        }
        self._profiler = profiler.profile(activities=self._activities or _activities(), **options)
        self._profiler.__enter__()

    def after_step(self) -> None:
        """Write the trace."""
        if self._profiler is None:
            return
        self._close()
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"profiler-trace-iter{self.trainer.iter}"
        path = self._folder / (f"{name}.pt.trace.json" if self._tensorboard else f"{name}.json")
        self._finished.export_chrome_trace(str(path))
        logger.info("wrote a profile of iteration %d to %s", self.trainer.iter, path)

    def after_train(self) -> None:
        """Stop recording, if the run died in the middle."""
        if self._profiler is not None:
            self._close()

    def _close(self) -> None:
        self._finished, self._profiler = self._profiler, None
        self._finished.__exit__(None, None, None)


def _activities() -> list[Any]:
    kinds = [profiler.ProfilerActivity.CPU]
    return [*kinds, profiler.ProfilerActivity.CUDA] if torch.cuda.is_available() else kinds
