"""Memory that grows with every step, and how much is left."""

import gc
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from treadle.data import Batch, TakesRows, size_of
from treadle.data.batch import map_leaves
from treadle.loop.oom_retry import BeforeAttempt
from treadle.memory.device import forget_peak, peak_device_memory
from treadle.tools.doctor.detectors.base import Detector
from treadle.tools.doctor.findings import Finding, Note

# Batches made larger, to see how much fits


def repeat_rows(batch: Batch, samples: int) -> Batch | None:
    """Return a batch of `samples` samples: those of `batch`, over and over; None if nobody knows how.

    >>> repeat_rows((torch.tensor([1, 2]), {"weight": torch.tensor([0.5, 0.25])}), 3)
    (tensor([1, 2, 1]), {'weight': tensor([0.5000, 0.2500, 0.5000])})
    """
    size = size_of(batch)
    rows = torch.arange(samples) % size

    def repeat(leaf: Any) -> Any:
        has_rows = isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size
        return leaf[rows.to(leaf.device)] if has_rows else leaf

    return None if _has_rows_of_its_own(batch) else map_leaves(repeat, batch)


def _has_rows_of_its_own(value: Any) -> bool:
    if isinstance(value, TakesRows):
        return True
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return any(map(_has_rows_of_its_own, inside))


FEWEST = 5
"""Steps over which something must grow each time."""


class Memory(Detector):
    """Counts the tensors that live after each step."""

    def begin(self) -> None:
        """Know nothing yet, and leave out of the count all that is there already: looking at it takes long."""
        self._counts: list[int] = []
        gc.freeze()

    def after_update(self) -> None:
        """Count what autograd still knows of."""
        self._counts.append(sum(map(_has_graph, _tensors())))

    def findings(self) -> Iterable[Finding]:
        """Return whether every step leaves more behind than the one before."""
        gc.unfreeze()
        last = self._counts[-FEWEST:]
        if len(last) == FEWEST and all(before < after for before, after in pairwise(last)):
            yield Finding(
                "memory_grows",
                f"every step leaves {last[-1] - last[-2]} tensors behind, with the graph that computed them: somebody "
                "keeps outputs or losses",
                "keep them with .detach(), or only their numbers at on_log",
            )


def _has_graph(tensor: Tensor) -> bool:
    try:
        return tensor.grad_fn is not None
    except RuntimeError:
        # A view whose base was written to without autograd cannot say; somewhere in the process there may be one.
        return False


def _tensors() -> list[Tensor]:
    # The type, not isinstance: lazy objects of other libraries would be loaded by being asked.
    return [one for one in gc.get_objects() if type(one) is Tensor]


# How much memory of the device is left, and how large a micro-batch it would do for


SPARE = 0.95
"""The share of the memory that a micro-batch may take: allocators leave gaps."""
MOST = 1 << 20
"""Samples in a micro-batch beyond which nobody looks."""
TRIES = 4
"""How often a guess that did not fit is halved."""


class MemoryHeadroom(Detector):
    """Watches the memory of a few steps, and tries larger micro-batches once they are over."""

    light = True

    def begin(self) -> None:
        """Know nothing yet; count the peak from here."""
        self._notes: list[Note] = []
        self._phase: Any = None
        self._window: list[Any] = []
        self._is_cuda = self.trainer.device.type == "cuda"
        forget_peak(self.trainer.device)

    def before_update(self, phase: Any, window: list[Any]) -> None:
        """Keep the data of the last update."""
        self._phase, self._window = phase, window

    def after_update(self) -> None:
        """Look around after the last update, while everything that takes memory is there."""
        if self._is_cuda and self.trainer.progress.step == self.trainer.this_run.due.last_step:
            self._notes.append(Note("memory", self._in_words()))

    def notes(self) -> Iterable[Note]:
        """Return what is left, on a GPU."""
        return self._notes

    def _in_words(self) -> str:
        device = self.trainer.device
        peak, total = peak_device_memory(device) or 0, torch.cuda.get_device_properties(device).total_memory
        told = f"a step takes {_mib(peak)} of {_mib(total)} at its peak, {1 - peak / total:.0%} are left"
        if self._cannot_try():
            return told
        size = size_of(self._window[0])
        largest = self._largest(size, total)
        if largest is None:
            return told
        bound = "all of the data" if largest == self._samples() else "tried, in powers of two"
        return f"{told}; the largest micro-batch is about {largest} samples ({bound}; {size} now)"

    def _cannot_try(self) -> bool:
        """Whether trying would disturb others, or nobody knows what a larger batch looks like."""
        trainer = self.trainer
        spread = trainer.this_run.execution.replays or trainer.processes.distributed or self._phase.reuse
        return bool(spread) or not self._window or repeat_rows(self._window[0], 1) is None

    def _samples(self) -> int:
        """Return how many samples there are to put into one micro-batch."""
        source = next(iter(self.trainer.streams.values())).source
        data: Any = getattr(source, "dataset", None)
        return len(data) if hasattr(data, "__len__") else MOST

    def _largest(self, size: int, total: int) -> int | None:
        """Return the largest power of two of samples that fits, as far as it is worth knowing."""
        bound = min(self._samples(), MOST)
        one, two = self._peak_of(size), self._peak_of(2 * size)
        if one is None or two is None or bound <= size:
            return size if one is not None else None
        # What is there in any case, and what each sample adds to it: two points of a line.
        each = max(two - one, 1) / size
        guess = size + int((SPARE * total - one) / each)
        candidate = bound if guess >= bound else 1 << max(guess, 1).bit_length() - 1
        for _ in range(TRIES):
            if candidate <= size:
                return size
            if self._peak_of(candidate) is not None:
                return candidate
            candidate = 1 << (candidate - 1).bit_length() - 1
        return None

    def _peak_of(self, samples: int) -> int | None:
        """Return the peak of memory of one forward and backward pass over so many samples; None if it is too much."""
        trainer, device = self.trainer, self.trainer.device
        before = BeforeAttempt(trainer.model, trainer._loss_tracker, trainer.this_run.metrics)
        generators = torch.get_rng_state(), torch.cuda.get_rng_state(device)
        torch.cuda.empty_cache()
        forget_peak(device)
        try:
            # Silent: this pass is nobody's business but the doctor's.
            trainer.calculate_gradients(replace(self._phase, silent=True), [repeat_rows(self._window[0], samples)])
            return peak_device_memory(device)
        except torch.cuda.OutOfMemoryError:
            return None
        finally:
            trainer.optimizer_zero_grad()
            before.restore()
            torch.set_rng_state(generators[0])
            torch.cuda.set_rng_state(generators[1], device)


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
