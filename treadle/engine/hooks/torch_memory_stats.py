"""Logs what CUDA's memory is used for."""

import logging

import torch

from treadle.engine.hook_base import HookBase

logger = logging.getLogger(__name__)


class TorchMemoryStats(HookBase):
    """Logs the CUDA memory that is and was reserved and allocated; without CUDA it does nothing.

    Args:
        period: Iterations between two times.
        max_runs: How often in all; the last time brings torch's own summary.
    """

    def __init__(self, period: int = 20, max_runs: int = 10) -> None:
        self._period = period
        self._max_runs = max_runs
        self._runs = 0

    def after_step(self) -> None:
        """Log if it is time."""
        last = self.trainer.iter == self.trainer.max_iter - 1
        if self._runs >= self._max_runs or not (last or (self.trainer.iter + 1) % self._period == 0):
            return
        if not torch.cuda.is_available():
            return
        self._runs += 1
        numbers = (
            torch.cuda.max_memory_reserved(),
            torch.cuda.memory_reserved(),
            torch.cuda.max_memory_allocated(),
            torch.cuda.memory_allocated(),
        )
        text = "iteration %d: reserved %d MiB at most, %d now; allocated %d MiB at most, %d now"
        logger.info(text, self.trainer.iter, *(number // 2**20 for number in numbers))
        if self._runs == self._max_runs:
            logger.info("\n%s", torch.cuda.memory_summary())
        torch.cuda.reset_peak_memory_stats()
