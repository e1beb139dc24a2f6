"""Shows metrics on the console."""

import logging
import time
from collections.abc import Callable, Collection
from typing import Any

import torch

from treadle.callbacks.epoch_table import EpochTable
from treadle.callbacks.progress_display import NotebookDisplay, in_notebook
from treadle.console.lines import DETAIL, clock, fields, line
from treadle.events import get_event_storage
from treadle.events.names import (
    DATA_TIME,
    ETA_SECONDS,
    LR,
    MEASURED,
    MFU,
    PEAK_MEMORY_MIB,
    SAMPLES_PER_SECOND,
    TIME,
    TOKENS_PER_SECOND,
)
from treadle.events.storage import EventStorage
from treadle.writers.event_writer import EventWriter
from treadle.writers.unwritten import Unwritten, numbers_in

logger = logging.getLogger(__name__)

ETA_WINDOW = 1000
"""Over how many iterations the median of the step time is taken that tells when the run will end."""

WORTH_TELLING = 0.1
"""From which share of a step on it is said that the step waits for its data."""
PLACED = {LR, *MEASURED}
"""Metrics that have a place of their own in the line, if any."""


class CommonMetricPrinter(EventWriter):
    """Shows where a run is, its losses, its pace and its memory, in one line whenever there is something new.

    Losses, which are metrics with "loss" in their names, come first. How long the run will still take is put into
    the storage as well, as "eta_seconds"; give this writer before those that shall have it. What a line leaves out,
    such as the time of a step, is in what other writers write. In a notebook the lines are rows of a table below a
    chart of the loss, which grow in their place, unless `show` says what is done with them.

    Args:
        batch_size: The samples of one iteration, to tell the throughput where nobody measures it.
        max_iter: The iteration at which the run ends; None shows no time to go.
        window_size: Over how many iterations the median is taken of metrics that are to be smoothed.
        show: What is done with a line; by default it is logged as information.
        told: Names of metrics that somebody else shows, such as those of evaluations; it may grow.
    """

    def __init__(
        self,
        batch_size: int | None = None,
        max_iter: int | None = None,
        window_size: int = 20,
        *,
        show: Callable[[str], object] | None = None,
        told: Collection[str] = (),
    ) -> None:
        self._batch_size = batch_size
        self._max_iter = max_iter
        self._window_size = window_size
        self._unwritten = Unwritten(window_size)
        self._show = logger.info if show is None else show
        self._display = NotebookDisplay(EpochTable()) if show is None and in_notebook() else None
        self._told = told
        self._last: tuple[float, int] | None = None

    def write(self) -> None:
        """Show a line if there is something new."""
        storage = get_event_storage()
        if self._unwritten.new_life(storage) is not None:
            self._last = None
            if self._display is not None:
                self._display = NotebookDisplay(EpochTable())
        new: dict[str, Any] = {}
        for values in self._unwritten.take(storage).values():
            new |= values
        shown = {name: value for name, value in numbers_in(new).items() if name not in self._told}
        if shown:
            parts = self._parts(storage, shown)
            if self._display is None:
                self._show(line(*parts))
            else:
                self._draw(self._display, parts, shown)

    def _draw(self, display: NotebookDisplay, parts: list[str], shown: dict[str, float]) -> None:
        """Show a line as a row of the table of a notebook; as text it is in the log of the run."""
        assert display.table is not None
        display.table.add_row(parts[0], line(*parts[3:]), _own(shown), best=False)
        display.refresh()
        logger.info("%s", line(*parts), extra=DETAIL)

    def _parts(self, storage: EventStorage, new: dict[str, float]) -> list[str]:
        """Return what a line is made of, in order."""
        return [
            self._place(storage),
            fields(_own(new)),
            line(*_rates(storage)),
            line(*self._pace(storage)),
            _memory(storage),
            self._time_left(storage),
        ]

    def _place(self, storage: EventStorage) -> str:
        if self._max_iter is None:
            return f"step {storage.iter:,}"
        # An iteration is counted when it is over; behind the last one there is none under way.
        return f"step {min(storage.iter + 1, self._max_iter):,}/{self._max_iter:,}"

    def _time_left(self, storage: EventStorage) -> str:
        if self._max_iter is None or storage.iter >= self._max_iter:
            return ""
        seconds = self._seconds_per_iteration(storage)
        if seconds is None:
            return ""
        left = seconds * (self._max_iter - storage.iter - 1)
        storage.put_scalar(ETA_SECONDS, left, smoothing_hint=False)
        # Flushed and taken as seen: a line is not due because the last one was shown.
        self._unwritten.mark = storage.sequence
        return f"{clock(left)} left"

    def _seconds_per_iteration(self, storage: EventStorage) -> float | None:
        """Return the usual time of a step, or that since the last line where nobody measures it."""
        if TIME in storage.names():
            return storage.history(TIME).median(ETA_WINDOW)
        before, self._last = self._last, (time.perf_counter(), storage.iter)
        if before is None or storage.iter <= before[1]:
            return None
        return (self._last[0] - before[0]) / (storage.iter - before[1])

    def _pace(self, storage: EventStorage) -> list[str]:
        names, parts = storage.names(), []
        samples = self._samples_per_second(storage)
        if samples is not None:
            parts.append(f"{samples:,.0f} samples/s")
        if TOKENS_PER_SECOND in names:
            parts.append(f"{storage.history(TOKENS_PER_SECOND).latest():,.0f} tokens/s")
        if MFU in names:
            parts.append(f"mfu {storage.history(MFU).latest():.1%}")
        if TIME in names and DATA_TIME in names:
            waits = storage.history(DATA_TIME).avg(self._window_size)
            share = waits / max(storage.history(TIME).avg(self._window_size), waits) if waits else 0.0
            # Only where it is worth a look: a loader that keeps up waits next to nothing.
            parts += [f"waits for data {share:.0%}"] * (share >= WORTH_TELLING)
        return parts

    def _samples_per_second(self, storage: EventStorage) -> float | None:
        if SAMPLES_PER_SECOND in storage.names():
            return float(storage.history(SAMPLES_PER_SECOND).latest())
        if self._batch_size is None or TIME not in storage.names():
            return None
        seconds = storage.history(TIME).global_avg()
        return self._batch_size / seconds if seconds else None


def _own(new: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in new.items() if name not in PLACED and not name.startswith("lr/")}


def _rates(storage: EventStorage) -> list[str]:
    """Return the learning rate, or that of each group of parameters."""
    names = sorted(name for name in storage.names() if name == LR or name.startswith(f"{LR}/"))
    return [f"{name} {storage.history(name).latest():.2e}" for name in names]


def _memory(storage: EventStorage) -> str:
    """Return the memory that was taken on a GPU; that of the host is rarely what a run ends by."""
    if not torch.cuda.is_available():
        return ""
    known = PEAK_MEMORY_MIB in storage.names()
    mebibytes = storage.history(PEAK_MEMORY_MIB).latest() if known else torch.cuda.max_memory_allocated() / 2**20
    return f"{mebibytes / 1024:.1f} GiB"
