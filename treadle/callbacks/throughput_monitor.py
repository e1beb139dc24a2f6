"""Reports how fast a run goes, how long it waits for its data and how much memory it takes."""

import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

from treadle.callback import TrainerCallback
from treadle.data.prefetch import Waiting, what_to_try
from treadle.events.names import DATA_TIME, PEAK_MEMORY_MIB, SAMPLES_PER_SECOND, STEPS_PER_SECOND
from treadle.loop.interfaces import RunningTrainer
from treadle.memory.device import peak_device_memory


@dataclass(slots=True)
class _Mark:
    """A point of a run that the next report counts from."""

    time: float
    step: int
    samples: int


MUCH_WAITING = 0.2
"""The share of the time spent waiting for data from which on the user is told."""
MUCH_SECONDS = 1.0
"""Before the whole run has waited as long nothing is said of it: a run of seconds has nothing to win."""
JUDGED_STEPS = 10
"""Over fewer steps nothing is said of it."""


class ThroughputMonitor(TrainerCallback):
    """Puts samples and steps per second, the wait for data and the peak of memory into the storage at every log.

    The clock is read when a log is due, when the device has just been waited for, around evaluations, whose time does
    not count, and around the drawing of data; never in the rest of a step, and nothing waits for the device. Samples
    are those of all processes. The wait is that of a step, on this process; if it is over a fifth of the time, that is
    said once, with what to try, but not at the first log of a run, for workers have to start, nor before a second was
    lost. Memory is the CUDA memory allocated at most, or the largest size of the process.
    """

    reports = (SAMPLES_PER_SECOND, STEPS_PER_SECOND)

    def __init__(self) -> None:
        self._mark: _Mark | None = None
        self._evaluation_began = 0.0
        self._logs, self._waited = 0, 0.0
        self._told = False

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Know nothing of earlier runs."""
        self._logs, self._waited, self._told = 0, 0.0, False

    def on_train_epoch_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Count from here."""
        for stream in trainer.streams.values():
            stream.waiting = Waiting(trainer.device)
        self._mark = _here(trainer)

    def on_eval_epoch_start(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Stop the clock."""
        self._evaluation_began = time.perf_counter()

    def on_eval_epoch_end(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Start the clock again."""
        if self._mark is not None:
            self._mark.time += time.perf_counter() - self._evaluation_began

    def on_log(self, trainer: RunningTrainer, scalars: Any = None, **kwargs: Any) -> None:
        """Report the rates since the last log, to the storage and to the callbacks that come later."""
        before, now = self._mark, _here(trainer)
        if before is None or now.step == before.step or now.time <= before.time:
            return
        self._mark = now
        seconds = now.time - before.time
        # Processes that work on the same samples count them once.
        samples = (now.samples - before.samples) * trainer.parallel.data_size
        trainer.storage.put_scalar(SAMPLES_PER_SECOND, samples / seconds)
        trainer.storage.put_scalar(STEPS_PER_SECOND, (now.step - before.step) / seconds)
        self._report_waiting(trainer, now.step - before.step, seconds)
        # On CUDA the trainer itself reports it.
        memory = None if trainer.device.type == "cuda" else peak_memory(trainer.device)
        if memory is not None:
            trainer.storage.put_scalar(PEAK_MEMORY_MIB, memory / 2**20, smoothing_hint=False)
        scalars.update(trainer.storage.flush())

    def _report_waiting(self, trainer: RunningTrainer, steps: int, seconds: float) -> None:
        waited = {name: stream.waiting.take() for name, stream in trainer.streams.items() if stream.waiting is not None}
        share = sum(waited.values()) / seconds
        trainer.storage.put_scalar(DATA_TIME, sum(waited.values()) / steps)
        self._logs += 1
        self._waited += sum(waited.values())
        judged = steps >= JUDGED_STEPS and self._logs > 1 and self._waited >= MUCH_SECONDS
        if share > MUCH_WAITING and judged and not self._told:
            self._told = True
            slowest = max(waited, key=lambda name: waited[name])
            stream = trainer.streams[slowest]
            trainer.print(
                f"{share:.0%} of the time of the last {steps} steps was spent waiting for the {slowest} data: "
                f"{what_to_try(stream.source, trainer.device, ahead=stream.sends_ahead)}"
            )


def _here(trainer: RunningTrainer) -> _Mark:
    return _Mark(time.perf_counter(), trainer.progress.step, trainer.progress.samples)


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes allocated on a CUDA device, or taken by this process; None where nobody counts."""
    if device.type == "cuda":
        return peak_device_memory(device)
    if sys.platform == "win32":
        return None
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
