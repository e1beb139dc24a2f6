"""Training data in an order that hides most of it."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from treadle.doctor.detectors.detector import Detector
from treadle.doctor.finding import Finding

FEWEST = 4
"""Batches that must agree before anything is said, and the samples that each must have."""
PROBES = 16


class DataOrder(Detector):
    """Looks at the labels of batches: in a good order, most batches have several."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._labels: list[set[Any]] = []

    def after_loss(self, batch: Any, output: dict[str, Any]) -> None:
        """Note the labels of a batch."""
        labels = labels_of(batch)
        if labels is not None and len(labels) >= FEWEST:
            self._labels.append(set(labels.tolist()))

    def findings(self) -> Iterable[Finding]:
        """Return whether every batch had one label only, while the data has others."""
        if len(self._labels) < FEWEST or any(len(labels) > 1 for labels in self._labels):
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


def labels_of(batch: Any) -> Tensor | None:
    """Return the labels of a batch of (inputs, labels), if they are numbers of classes."""
    labels = batch[-1] if isinstance(batch, (tuple, list)) and len(batch) > 1 else None
    whole = isinstance(labels, Tensor) and labels.dim() == 1 and not labels.is_floating_point()
    return labels if whole else None


def _is_label(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0 and not value.is_floating_point()
