"""A run that waits for its data."""

import math
import statistics
import time
from collections.abc import Iterable
from typing import Any

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


class DataWait(Detector):
    """Compares the time that drawing batches takes with that of the steps that nobody else looks at."""

    light = True

    def begin(self) -> None:
        """Have the streams say how long they wait."""
        self._times: list[tuple[float, float]] = []
        for stream in self.trainer.streams.values():
            stream.waiting = Waiting(self.trainer.device)

    def before_update(self, phase: Any, window: list[Any]) -> None:
        """Note the time, and how long the data of this update was waited for."""
        waited = sum(one.waiting.take() for one in self.trainer.streams.values() if one.waiting is not None)
        self._times.append((time.perf_counter(), waited))

    def findings(self) -> Iterable[Finding]:
        """Return whether the loader is the bottleneck, and how many workers would do."""
        counted = self._times[WARM_UP : UNDISTURBED + 1]
        steps = len(counted) - 1
        if steps < FEWEST:
            return
        whole = counted[-1][0] - counted[0][0]
        waited = sum(seconds for _, seconds in counted[1:])
        # The median: one wait may be long because the machine does something else.
        if waited > MUCH * whole and statistics.median(seconds for _, seconds in counted[1:]) > LEAST:
            work = max(whole - waited, 1e-9)
            stream = next(iter(self.trainer.streams.values()))
            workers = max(1, getattr(stream.source, "num_workers", 0) or 0) * math.ceil(waited / work)
            yield Finding(
                "slow_data",
                f"{waited / whole:.0%} of the time is spent waiting for data ({1000 * waited / steps:.1f} ms a step; "
                f"the rest of it takes {1000 * work / steps:.1f} ms); about {workers} workers would keep up: "
                f"{what_to_try(stream.source, self.trainer.device, ahead=stream.sends_ahead)}",
            )
