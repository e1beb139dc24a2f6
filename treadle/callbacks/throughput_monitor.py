"""Reports how fast a run goes and how much memory it takes."""

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from treadle.callback import TrainerCallback

if TYPE_CHECKING:
    from treadle.trainer import Trainer


@dataclass(slots=True)
class _Mark:
    """A point of a run that the next report counts from."""

    time: float
    step: int
    samples: int


class ThroughputMonitor(TrainerCallback):
    """Puts samples and steps per second, and the peak of memory, into the trainer's storage at every log.

    The clock is read when a log is due, when the device has just been waited for, and around evaluations, whose
    time does not count; never in a step. Samples are those of all processes. Memory is the CUDA memory
    allocated at most, or the largest size of the process.
    """

    def __init__(self) -> None:
        self._mark: _Mark | None = None
        self._evaluation_began = 0.0

    def on_train_epoch_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Count from here."""
        self._mark = _here(trainer)

    def on_eval_epoch_start(self, trainer: "Trainer", is_intermediate: bool = False, **kwargs: Any) -> None:
        """Stop the clock."""
        self._evaluation_began = time.perf_counter()

    def on_eval_epoch_end(self, trainer: "Trainer", is_intermediate: bool = False, **kwargs: Any) -> None:
        """Let the clock go on."""
        if self._mark is not None:
            self._mark.time += time.perf_counter() - self._evaluation_began

    def on_log(self, trainer: "Trainer", scalars: Any = None, **kwargs: Any) -> None:
        """Report the rates since the last log, to the storage and to the callbacks that come later."""
        before, now = self._mark, _here(trainer)
        if before is None or now.step == before.step or now.time <= before.time:
            return
        self._mark = now
        seconds = now.time - before.time
        samples = (now.samples - before.samples) * trainer.processes.size
        trainer.storage.put_scalar("samples_per_second", samples / seconds)
        trainer.storage.put_scalar("steps_per_second", (now.step - before.step) / seconds)
        memory = peak_memory(trainer.device)
        if memory is not None:
            trainer.storage.put_scalar("peak_memory_mib", memory / 2**20, smoothing_hint=False)
        scalars.update(trainer.storage.flush())


def _here(trainer: "Trainer") -> _Mark:
    return _Mark(time.perf_counter(), trainer.progress.step, trainer.progress.samples)


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes allocated on a CUDA device, or taken by this process; None where nobody counts."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
