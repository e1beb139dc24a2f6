"""Writes metrics for TensorBoard."""

import os
from typing import TYPE_CHECKING, Any

from treadle.errors import require
from treadle.events import get_event_storage
from treadle.events.media import Histogram, Image
from treadle.events.storage import EventStorage
from treadle.writers.event_writer import EventWriter
from treadle.writers.unwritten import Unwritten, numbers_in

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorboardWriter(EventWriter):
    """Writes scalars, images and histograms for TensorBoard.

    The log is opened at the first write. A run that goes on from a checkpoint has TensorBoard hide what was written
    after it; a new run in the same folder hides all of the old.

    Args:
        log_dir: The folder of the log.
        window_size: Over how many iterations the median is taken of metrics that are to be smoothed.
        **settings: Further arguments of `torch.utils.tensorboard.SummaryWriter`.

    Raises:
        MissingDependencyError: tensorboard is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str], window_size: int = 20, **settings: Any) -> None:
        require("tensorboard", extra="tensorboard", user=type(self).__name__)
        self._settings = {"log_dir": os.fspath(log_dir), **settings}
        self._unwritten = Unwritten(window_size)
        self._log: SummaryWriter | None = None

    def write(self) -> None:
        """Write what is new."""
        storage = get_event_storage()
        if (life := self._unwritten.new_life(storage)) is not None:
            self.close()
            self._log = self._opened(purge_step=life.kept + 1)
        if self._log is None:
            self._log = self._opened()
        self._write_new(self._log, storage)
        self._log.flush()

    def close(self) -> None:
        """Complete the log."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _opened(self, purge_step: int | None = None) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(**{"purge_step": purge_step, **self._settings})

    def _write_new(self, log: "SummaryWriter", storage: EventStorage) -> None:
        since = self._unwritten.mark
        for iteration, values in self._unwritten.take(storage).items():
            for name, value in numbers_in(values).items():
                log.add_scalar(name, value, iteration)
        for image in storage.images(since):
            _add_image(log, image)
        for histogram in storage.histograms(since):
            _add_histogram(log, histogram)


TensorboardXWriter = TensorboardWriter
"""The name that other frameworks have for it."""


def _add_image(log: "SummaryWriter", image: Image) -> None:
    log.add_image(image.name, image.as_bytes(), image.iteration)


def _add_histogram(log: "SummaryWriter", histogram: Histogram) -> None:
    least, greatest, total, squares = histogram.facts.tolist()
    counts = histogram.counts.tolist()
    if not sum(counts):
        return
    # Each bin is given by its upper end; one value only makes bins without width, which no reader takes.
    width = (greatest - least) / len(counts) or 1.0
    limits = [least + width * place for place in range(1, len(counts) + 1)]
    log.add_histogram_raw(
        histogram.name, least, greatest, sum(counts), total, squares, limits, counts, histogram.iteration
    )
