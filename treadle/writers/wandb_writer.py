"""Writes metrics to Weights & Biases."""

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

from treadle.errors import ConfigError, require
from treadle.events import get_event_storage
from treadle.events.storage import EventStorage
from treadle.writers.event_writer import EventWriter
from treadle.writers.remembered_run import RememberedRun
from treadle.writers.row_file import ITERATION
from treadle.writers.unwritten import Rows, Unwritten, numbers_in


class WandbWriter(EventWriter):
    """Writes scalars, images and histograms to a run of Weights & Biases, over the iteration.

    The run is begun at the first write. A training run that goes on from a checkpoint goes on with the same run
    there, whose id is in `dir`, and sends no iteration twice.

    Args:
        project: The project of the run.
        dir: The folder for files of the run.
        window_size: Over how many iterations the median is taken of metrics that are to be smoothed.
        **settings: Further arguments of `wandb.init`, such as name, config, or mode="offline".

    Raises:
        MissingDependencyError: wandb is not installed.
        ConfigError: At the first write: nobody is logged in.
    """

    def __init__(
        self, project: str | None = None, *, dir: str | os.PathLike[str] = ".", window_size: int = 20, **settings: Any
    ) -> None:
        require("wandb", extra="wandb", user=type(self).__name__)
        self._folder = Path(dir)
        self._settings = {"project": project, **settings}
        self._unwritten = Unwritten(window_size)
        self._remembered = RememberedRun(self._folder / "wandb_run.json")
        self._run_id: str | None = None
        self._run: Any = None

    def write(self) -> None:
        """Send what is new."""
        storage = get_event_storage()
        if (life := self._unwritten.new_life(storage)) is not None:
            self.close()
            self._run_id = self._remembered.begin(life) or self._settings.get("id")
        if self._run is None:
            self._run = self._begun()
        self._send(storage)

    def close(self) -> None:
        """Complete the run; what was logged offline is in its folder."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    def _begun(self) -> Any:
        import wandb

        self._folder.mkdir(parents=True, exist_ok=True)
        chosen = {"dir": str(self._folder), **self._settings, "id": self._run_id or uuid4().hex[:8]}
        self._run_id = chosen["id"]
        try:
            run = wandb.init(**{"resume": "allow", **chosen})
        except wandb.Error as error:
            raise ConfigError(
                f"{type(self).__name__} cannot begin a run of Weights & Biases: {error} To keep the metrics in "
                f"{self._folder}, without an account, set WANDB_MODE=offline, or pass mode='offline'"
            ) from None
        run.define_metric(ITERATION)
        run.define_metric("*", step_metric=ITERATION)
        return run

    def _send(self, storage: EventStorage) -> None:
        since = self._unwritten.mark
        rows: Rows = {}
        for iteration, values in self._unwritten.take(storage).items():
            rows[iteration] = dict(numbers_in(values))
        for iteration, name, value in _media(storage, since):
            rows.setdefault(iteration, {})[name] = value
        unsent = self._remembered.unsent(rows)
        for iteration, values in unsent.items():
            self._run.log({ITERATION: iteration, **values})
        self._remembered.remember(str(self._run_id), unsent)


def _media(storage: EventStorage, since: int) -> list[tuple[int, str, Any]]:
    """Return new images and histograms as wandb takes them."""
    import numpy as np
    import wandb

    found: list[tuple[int, str, Any]] = []
    for image in storage.images(since):
        pixels = image.as_bytes().permute(1, 2, 0).numpy()
        found.append((image.iteration, image.name, wandb.Image(pixels)))
    for histogram in storage.histograms(since):
        least, greatest, _, _ = histogram.facts.tolist()
        edges = np.linspace(least, greatest, len(histogram.counts) + 1)
        table = (histogram.counts.cpu().numpy(), edges)
        found.append((histogram.iteration, histogram.name, wandb.Histogram(np_histogram=table)))
    return found
