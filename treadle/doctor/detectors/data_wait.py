"""A run that waits for its data."""

import math
import statistics
import sys
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from treadle.data.waiting import Waiting, what_to_try
from treadle.doctor.detectors.detector import UNDISTURBED, Detector
from treadle.doctor.finding import Finding

MUCH = 0.3
"""The share of the time from which on waiting is a fault."""
WARM_UP = 2
"""Steps that do not count: workers have to start, and kernels to be chosen."""
LEAST = 0.002
"""Seconds of waiting in a step under which nobody cares: the step of a toy is as short."""
FEWEST = 2
"""Steps that must count before anything is said."""


class _Moment(NamedTuple):
    """When an update began, how long its data was waited for, and how often others had taken the processor by then."""

    time: float
    waited: float
    interruptions: int


class DataWait(Detector):
    """Compares the time that drawing batches takes with that of the steps that nobody else looks at."""

    light = True

    def begin(self) -> None:
        """Have the streams say how long they wait."""
        self._moments: list[_Moment] = []
        for stream in self.trainer.streams.values():
            stream.waiting = Waiting(self.trainer.device)

    def before_update(self, phase: Any, window: list[Any]) -> None:
        """Note the time, and how long the data of this update was waited for."""
        waited = sum(one.waiting.take() for one in self.trainer.streams.values() if one.waiting is not None)
        self._moments.append(_Moment(time.perf_counter(), waited, interruptions()))

    def findings(self) -> Iterable[Finding]:
        """Return whether the loader is the bottleneck, and how many workers would do."""
        pairs = list(pairwise(self._moments[WARM_UP : UNDISTURBED + 1]))
        # On a busy machine a step is long because others had the processor; the steps that they left alone tell.
        quiet = [(before, after) for before, after in pairs if before.interruptions == after.interruptions]
        counted = quiet if len(quiet) >= FEWEST else pairs
        steps = len(counted)
        if steps < FEWEST:
            return
        whole = sum(after.time - before.time for before, after in counted)
        waited = sum(after.waited for _, after in counted)
        # The median: one wait may be long because the machine does something else.
        if waited > MUCH * whole and statistics.median(after.waited for _, after in counted) > LEAST:
            work = max(whole - waited, 1e-9)
            stream = next(iter(self.trainer.streams.values()))
            workers = max(1, getattr(stream.source, "num_workers", 0) or 0) * math.ceil(waited / work)
            yield Finding(
                "slow_data",
                f"{waited / whole:.0%} of the time is spent waiting for data ({1000 * waited / steps:.1f} ms a step; "
                f"the rest of it takes {1000 * work / steps:.1f} ms); about {workers} workers would keep up: "
                f"{what_to_try(stream.source, self.trainer.device, ahead=stream.sends_ahead)}",
            )


def interruptions() -> int:
    """Return how often this thread had to leave the processor to others; 0 where the system does not count that."""
    if sys.platform != "linux":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
