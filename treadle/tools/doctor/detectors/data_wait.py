"""Evaluation on the wrong samples: some twice, some never, some that were trained on."""

import hashlib
import math
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from treadle.data import size_of
from treadle.data.prefetch import Waiting, what_to_try
from treadle.tools.doctor.detectors.base import WARMUP_STEPS, Detector
from treadle.tools.doctor.findings import Finding

# A run that waits for its data


WAIT_SHARE = 0.3
"""The share of the time from which on waiting is a fault."""
WARM_UP = 2
"""Steps that do not count: workers have to start, and kernels to be chosen."""
LEAST = 0.002
"""Seconds of waiting in a step under which nobody cares: the step of a toy is as short."""
MIN_STEPS = 2
"""Steps that must count before anything is said."""


class _Moment(NamedTuple):
    """When an update began, how long its data was waited for, and how often others had taken the processor by then."""

    time: float
    waited: float
    context_switches: int


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
        self._moments.append(_Moment(time.perf_counter(), waited, context_switches()))

    def findings(self) -> Iterable[Finding]:
        """Return whether the loader is the bottleneck, and how many workers would do."""
        pairs = list(pairwise(self._moments[WARM_UP : WARMUP_STEPS + 1]))
        # On a busy machine a step is long because others had the processor; the steps that they left alone tell.
        quiet = [(before, after) for before, after in pairs if before.context_switches == after.context_switches]
        counted = quiet if len(quiet) >= MIN_STEPS else pairs
        steps = len(counted)
        if steps < MIN_STEPS:
            return
        whole = sum(after.time - before.time for before, after in counted)
        waited = sum(after.waited for _, after in counted)
        # The median: one wait may be long because the machine does something else.
        if waited > WAIT_SHARE * whole and statistics.median(after.waited for _, after in counted) > LEAST:
            work = max(whole - waited, 1e-9)
            stream = next(iter(self.trainer.streams.values()))
            workers = max(1, getattr(stream.source, "num_workers", 0) or 0) * math.ceil(waited / work)
            yield Finding(
                "slow_data",
                f"{waited / whole:.0%} of the time is spent waiting for data ({1000 * waited / steps:.1f} ms a step; "
                f"the rest of it takes {1000 * work / steps:.1f} ms); about {workers} workers would keep up",
                f"{what_to_try(stream.source, self.trainer.device, ahead=stream.sends_ahead)}",
            )


def context_switches() -> int:
    """Return how often this thread had to leave the processor to others; 0 where the system does not count that."""
    if sys.platform != "linux":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


# Training data in an order that hides most of it


MIN_BATCHES = 4
"""Batches that must agree before anything is said, and the samples that each must have."""
PROBES = 16


class DataOrder(Detector):
    """Looks at the labels of batches: in a good order, most batches have several."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._labels: list[set[Any]] = []

    def after_loss(self, batch: Any, output: dict[str, Any]) -> None:
        """Note the labels of a batch."""
        labels = read_labels(batch)
        if labels is not None and len(labels) >= MIN_BATCHES:
            self._labels.append(set(labels.tolist()))

    def findings(self) -> Iterable[Finding]:
        """Return whether every batch had one label only, while the data has others."""
        if len(self._labels) < MIN_BATCHES or any(len(labels) > 1 for labels in self._labels):
            return
        if len(set().union(*self._labels, self._elsewhere())) > 1:
            yield Finding(
                "data_order",
                f"each of {len(self._labels)} batches has samples of one label only, while the data has others: it is "
                "sorted and not shuffled; leave the order to the trainer, or shuffle the data",
            )

    def _elsewhere(self) -> set[Any]:
        """Return the labels of a few samples from all over the data."""
        data: Any = getattr(self.trainer._train_dataloader, "dataset", None)
        if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
            return set()
        places = {len(data) * number // PROBES for number in range(PROBES)}
        found = [data[place][-1] for place in places if isinstance(data[place], (tuple, list))]
        return {int(label) for label in found if isinstance(label, int) or _is_label(label)}


def read_labels(batch: Any) -> Tensor | None:
    """Return the labels of a batch of (inputs, labels), if they are numbers of classes."""
    labels = batch[-1] if isinstance(batch, (tuple, list)) and len(batch) > 1 else None
    whole = isinstance(labels, Tensor) and labels.dim() == 1 and not labels.is_floating_point()
    return labels if whole else None


def _is_label(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0 and not value.is_floating_point()


MOST = 4096
"""Samples of each data set that are looked at."""
REPEATED_SHARE = 0.01
"""The share of samples from which on repetitions are a fault: some data repeats itself."""


class EvaluationData(Detector):
    """Compares samples by their content."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._seen: list[str] = []
        self._samples = 0

    def evaluating(self, batch: Any) -> None:
        """Note the samples of a batch."""
        self._samples += size_of(batch)
        if len(self._seen) < MOST:
            self._seen += sample_fingerprints(batch)

    def findings(self) -> Iterable[Finding]:
        """Return what is evaluated too often, or not at all."""
        if not self._seen:
            return
        repeated = len(self._seen) - len(set(self._seen))
        if repeated > REPEATED_SHARE * len(self._seen):
            yield Finding(
                "evaluation_data",
                f"{repeated} of the first {len(self._seen)} samples evaluated are repetitions, so that they count more "
                "than once; evaluate each sample once, without replacement or padding",
            )
        length = self._length()
        if length is not None and self._samples < length:
            yield Finding(
                "evaluation_data",
                f"{self._samples} of {length} samples are evaluated; without drop_last and limits all of them would be",
            )
        trained = set(self._trained())
        common = sum(sample in trained for sample in set(self._seen))
        if common > REPEATED_SHARE * len(set(self._seen)):
            yield Finding(
                "evaluation_data",
                f"{common} of {len(set(self._seen))} samples evaluated are among those trained on; split the data "
                "before both are made",
            )

    def _length(self) -> int | None:
        stream = self.trainer._eval_dataloader
        length = getattr(getattr(stream, "dataset", None), "__len__", None)
        return None if length is None or self.trainer.processes.distributed else int(length())

    def _trained(self) -> Iterator[str]:
        """Yield the samples of the training data, evenly over all of it."""
        data: Any = getattr(self.trainer._train_dataloader, "dataset", None)
        if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
            return
        step = max(1, len(data) // MOST)
        for index in range(0, len(data), step):
            yield fingerprint(data[index])


def sample_fingerprints(batch: Any) -> list[str]:
    """Return a fingerprint of each sample of a batch."""
    return [fingerprint(_sample(batch, row)) for row in range(size_of(batch))]


def _sample(value: Any, row: int) -> Any:
    if isinstance(value, dict):
        return {key: _sample(item, row) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sample(item, row) for item in value]
    return value[row] if isinstance(value, Tensor) and value.dim() else value


def fingerprint(sample: Any) -> str:
    """Return what is the same for two samples of the same content, whatever they are kept in."""
    digest = hashlib.sha256()
    for part in _leaves(sample):
        digest.update(part)
    return digest.hexdigest()


def _leaves(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _leaves(value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, (Tensor, np.ndarray, np.generic)):
        array = value.detach().cpu() if isinstance(value, Tensor) else np.asarray(value)
        yield repr((list(array.shape), array.tolist())).encode()
    else:
        yield repr(value).encode()
