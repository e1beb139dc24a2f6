"""Times the iterations."""

import datetime
import logging
import time
from collections import deque
from typing import Any

import torch

from treadle.engine.hook_base import HookBase
from treadle.events.names import TIME

logger = logging.getLogger(__name__)


class IterationTimer(HookBase):
    """Reports how long an iteration takes as `time`, without the first ones; put it first.

    On a GPU the time between two events on the device is taken, and reported when the device has come that far:
    nothing waits for it.

    Args:
        warmup_iter: How many iterations at the start of a run are left out.
    """

    def __init__(self, warmup_iter: int = 3) -> None:
        self._warmup = warmup_iter
        self._begin(0)

    def _begin(self, start: int) -> None:
        self._first_iter = start
        self._began = self._steady = self._step_began = time.perf_counter()
        self._in_steps = 0.0
        self._running: deque[tuple[Any, Any]] = deque()

    def before_train(self) -> None:
        """Start the clock."""
        self._begin(self.trainer.iter)
        self._on_gpu = self.trainer.device.type == "cuda"

    def before_step(self) -> None:
        """Note when the iteration begins."""
        self._step_began = time.perf_counter()
        self._event = _mark() if self._on_gpu else None

    def after_step(self) -> None:
        """Report how long it took, unless it was one of the first."""
        now = time.perf_counter()
        self._in_steps += now - self._step_began
        # The iteration that ends the warm-up starts the clock, and is the first to count.
        done = self.trainer.iter - self._first_iter + 1
        if done < self._warmup:
            self._steady = now
        elif self._event is None:
            self.trainer.storage.put_scalar(TIME, now - self._step_began)
        else:
            self._running.append((self._event, _mark()))
            self._report_finished()

    def _report_finished(self) -> None:
        while self._running and self._running[0][1].query():
            start, end = self._running.popleft()
            self.trainer.storage.put_scalar(TIME, start.elapsed_time(end) / 1000)

    def after_train(self) -> None:
        """Say how fast the run was."""
        now = time.perf_counter()
        done = self.trainer.iter - self._first_iter - max(self._warmup - 1, 0)
        if done > 0:
            seconds = now - self._steady
            text = "overall training speed: %d iterations in %s (%.4f s / it)"
            logger.info(text, done, _clock(seconds), seconds / done)
        outside = max(now - self._began - self._in_steps, 0.0)
        logger.info("total training time: %s (%s outside of steps)", _clock(now - self._began), _clock(outside))


def _mark() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=int(seconds)))
