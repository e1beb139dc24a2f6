"""Where the log of a run goes."""

import logging
import os
import sys
from pathlib import Path

from treadle.engine import dist
from treadle.run_status import made

FORMAT = "[%(asctime)s %(name)s] %(levelname)s: %(message)s"
NAME = "treadle"


def setup_logger(output_dir: str | os.PathLike[str] | None = None, *, level: int = logging.INFO) -> logging.Logger:
    """Have what Treadle logs shown on the console of the first process, and kept in `output_dir/log.txt`.

    Other processes write `log.txt.rank1` and so on. A second call with another folder moves the file there; nothing
    is shown twice. Where a program has configured logging itself, nothing is put on the console.

    Args:
        output_dir: The folder of the run; None only sets up the console.
        level: The least level to take.

    Raises:
        CheckpointError: The folder cannot be made, or not written into.
    """
    root = logging.getLogger(NAME)
    root.setLevel(level)
    own = [handler for handler in root.handlers if getattr(handler, "of_treadle", False)]
    for handler in own:
        root.removeHandler(handler)
        handler.close()
    if dist.is_main_process() and not logging.getLogger().handlers:
        _add(root, logging.StreamHandler(sys.stdout))
    if output_dir is not None:
        _add(root, _file_in(Path(output_dir)))
    return root


def _file_in(folder: Path) -> logging.FileHandler:
    rank = dist.get_rank()
    with made(folder):
        return logging.FileHandler(folder / ("log.txt" if rank == 0 else f"log.txt.rank{rank}"), encoding="utf-8")


def _add(root: logging.Logger, handler: logging.Handler) -> None:
    handler.of_treadle = True  # type: ignore[attr-defined]
    handler.setFormatter(logging.Formatter(FORMAT, datefmt="%m/%d %H:%M:%S"))
    root.addHandler(handler)
