"""Where a callback writes that was not told where."""

import os

from treadle.loop.interfaces import RunningTrainer


def output_path(given: str | os.PathLike[str] | None, usual: str, trainer: RunningTrainer) -> str | os.PathLike[str]:
    """Return the path that was given, else the usual one in the folder of the run, or here if the run has none."""
    if given is not None:
        return given
    return usual if trainer.run_dir is None else trainer.run_dir / usual
