"""Evaluation on the wrong samples: some twice, some never, some that were trained on."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch import Tensor

from treadle.data import size_of
from treadle.doctor.detectors.detector import Detector
from treadle.doctor.finding import Finding

MOST = 4096
"""Samples of each data set that are looked at."""
MUCH = 0.01
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
            self._seen += samples_of(batch)

    def findings(self) -> Iterable[Finding]:
        """Return what is evaluated too often, or not at all."""
        if not self._seen:
            return
        repeated = len(self._seen) - len(set(self._seen))
        if repeated > MUCH * len(self._seen):
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
        if common > MUCH * len(set(self._seen)):
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


def samples_of(batch: Any) -> list[str]:
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
