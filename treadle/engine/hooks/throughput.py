"""Reports how fast a run goes, and how much of the devices' peak it uses."""

import logging
import time

from treadle.callbacks.throughput_monitor import peak_memory
from treadle.engine.flops import FlopsCounter
from treadle.engine.hook_base import HookBase
from treadle.engine.peaks import peak_flops_of
from treadle.errors import ConfigError
from treadle.events.names import MFU, PEAK_MEMORY_MIB, SAMPLES_PER_SECOND, STEPS_PER_SECOND, TOKENS_PER_SECOND

logger = logging.getLogger(__name__)


class Throughput(HookBase):
    """Reports samples, tokens and iterations per second, the use of the devices' peak, and the peak of memory.

    The clock is read every so many iterations; the time of evaluations and checkpoints does not count. Iterations
    that warm up do not count either. Samples are those of all processes. Put it before `EvalHook` and the writers.

    Args:
        period: Iterations between two reports.
        warmup_iter: How many iterations at the start of a run are left out.
        tokens_per_sample: Tokens in a sample; None takes the length of the model's token input, if there is one.
        flops_per_sample: Operations of forward and backward pass; None counts them once, in a pass that computes
            nothing.
        peak_flops: Operations per second that one device is capable of; None looks it up in a table.
    """

    def __init__(
        self,
        period: int = 20,
        *,
        warmup_iter: int = 3,
        tokens_per_sample: int | None = None,
        flops_per_sample: float | None = None,
        peak_flops: float | None = None,
    ) -> None:
        if period < 1:
            raise ConfigError(f"Throughput(period={period}) must be at least 1")
        self._period = period
        self._warmup = warmup_iter
        self._tokens = tokens_per_sample
        self._flops = flops_per_sample
        self._peak = peak_flops

    def before_train(self) -> None:
        """Look up the peak, and have the operations of the model counted in its first pass."""
        core = self.trainer.core
        self._progress = core.progress
        self._steps = self._samples = 0
        self._seconds = 0.0
        self._step_began = 0.0
        self._first = self.trainer.iter
        if self._peak is None:
            self._peak = peak_flops_of(core.device, core.precision.kind)
        self._counter = FlopsCounter()
        core.on_first_data = self._counter.count

    def before_step(self) -> None:
        """Start the clock."""
        self._step_began = time.perf_counter()
        self._samples_before = self._progress.samples

    def after_step(self) -> None:
        """Add up the iteration; report if it is time."""
        if self.trainer.iter - self._first >= self._warmup:
            self._seconds += time.perf_counter() - self._step_began
            self._steps += 1
            self._samples += self._progress.samples - self._samples_before
        if (self.trainer.iter + 1) % self._period == 0 and self._steps:
            self._report()

    def _report(self) -> None:
        core, storage = self.trainer.core, self.trainer.storage
        if core.device.type == "cuda":
            # The queue of the device is worked off, so that host time is device time; a flush is due now anyway.
            began = time.perf_counter()
            storage.flush()
            self._seconds += time.perf_counter() - began
        # Processes that work on the same samples, as the stages of a pipeline do, count them once.
        own = self._samples / self._seconds
        all_samples = own * core.parallel.data_size
        storage.put_scalar(SAMPLES_PER_SECOND, all_samples)
        storage.put_scalar(STEPS_PER_SECOND, self._steps / self._seconds)
        tokens = self._tokens or self._counter.tokens_per_sample
        if tokens:
            storage.put_scalar(TOKENS_PER_SECOND, all_samples * tokens)
        flops = self._flops or self._counter.flops_per_sample
        if flops and self._peak:
            storage.put_scalar(MFU, own * flops / self._peak / core.parallel.copies)
        memory = peak_memory(core.device)
        if memory is not None:
            storage.put_scalar(PEAK_MEMORY_MIB, memory / 2**20, smoothing_hint=False)
        self._steps = self._samples = 0
        self._seconds = 0.0
