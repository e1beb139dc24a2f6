"""The writers that a run has if nobody says otherwise."""

import os
from importlib.util import find_spec
from pathlib import Path

from treadle.writers import CommonMetricPrinter, EventWriter, JSONWriter, TensorboardXWriter


def default_writers(
    output_dir: str | os.PathLike[str], max_iter: int | None = None, *, batch_size: int | None = None
) -> list[EventWriter]:
    """Return the writers for a run in `output_dir`: the console, `metrics.json` and, if it is installed, TensorBoard.

    Args:
        output_dir: The folder of the run.
        max_iter: The iteration at which the run ends; None shows no time to go.
        batch_size: The samples of one iteration, to tell the throughput where nobody measures it.
    """
    folder = Path(output_dir)
    writers: list[EventWriter] = [CommonMetricPrinter(batch_size, max_iter), JSONWriter(folder / "metrics.json")]
    if find_spec("tensorboard") is not None:
        writers.append(TensorboardXWriter(os.fspath(folder)))
    return writers
