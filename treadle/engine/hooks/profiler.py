"""Records what chosen iterations spend their time on."""

import datetime
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from treadle.callbacks.profiler import started_profiler, write_trace
from treadle.callbacks.step_timer import record_event
from treadle.console.lines import DETAIL
from treadle.engine.hooks.base import HookBase
from treadle.events.names import TIME

# Logs what CUDA's memory is used for


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


# Times the iterations


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
        self._event = record_event() if self._on_gpu else None

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
            self._running.append((self._event, record_event()))
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
            logger.info(text, done, _clock(seconds), seconds / done, extra=DETAIL)
        outside = max(now - self._began - self._in_steps, 0.0)
        text = "total training time: %s (%s outside of steps)"
        logger.info(text, _clock(now - self._began), _clock(outside), extra=DETAIL)


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=int(seconds)))


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
