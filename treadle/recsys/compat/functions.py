"""Small functions that files written for RecBole import, and that need nothing else of Treadle's."""

import logging
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from treadle.callbacks.throughput_monitor import peak_memory
from treadle.errors import ConfigError
from treadle.recsys.models.item_scores import looking
from treadle.recsys.optional import pandas


def set_color(log: object, color: str, highlight: bool = True) -> str:
    """Return a text as it is: whoever shows it decides about colours.

    >>> set_color("epoch 0", "green")
    'epoch 0'
    """
    return str(log)


def ensure_dir(dir_path: str | os.PathLike[str]) -> None:
    """Make a folder, unless it is there."""
    Path(dir_path).mkdir(parents=True, exist_ok=True)


def get_local_time() -> str:
    """Return the time as names of files have it, such as `Jan-31-2026_12-00-00`."""
    return datetime.now().strftime("%b-%d-%Y_%H-%M-%S")


def pad_sequence(
    sequences: Sequence[Tensor], len_list: Sequence[int], pad_to: int | None = None, padding_value: float = -math.inf
) -> Tensor:
    """Return sequences of different lengths as rows of one length.

    In RecBole `padding_value` is not used: what is added is -inf, which is the default here.

    >>> pad_sequence([torch.tensor([1.0]), torch.tensor([2.0, 3.0])], [1, 2]).tolist()
    [[1.0, -inf], [2.0, 3.0]]
    """
    width = max(len_list) if pad_to is None else pad_to
    rows = torch.full((len(sequences), width), padding_value, device=sequences[0].device)
    for row, values in zip(rows, sequences, strict=True):
        row[: len(values)] = values
    return rows


def trunc(scores: Any, method: str) -> Any:
    """Return scores rounded by a function of NumPy: "ceil", "floor" or "around".

    >>> trunc(np.array([1.5]), "floor").tolist()
    [1.0]

    Raises:
        NotImplementedError: There is no such function.
    """
    if method not in ("ceil", "floor", "around"):
        raise NotImplementedError(f"scores are rounded by 'ceil', 'floor' or 'around', not by {method!r}")
    return getattr(np, method)(scores)


def cutoff(scores: Any, threshold: float) -> Any:
    """Return 1 for scores above a threshold, and 0 for others.

    >>> cutoff(np.array([0.2, 0.7]), 0.5).tolist()
    [0, 1]
    """
    return np.where(scores > threshold, 1, 0)


class RemoveColorFilter(logging.Filter):
    """Takes the codes of colours out of what is logged, for files."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change a record in place, and let it pass."""
        record.msg = _COLOURS.sub("", str(record.msg))
        return True


_COLOURS = re.compile(r"\x1B(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])")


def get_gpu_usage(device: Any = None) -> str:
    """Return how much memory of a GPU was reserved at most, and how much it has."""
    reserved = torch.cuda.max_memory_reserved(device) / 1024**3
    total = torch.cuda.get_device_properties(device).total_memory / 1024**3
    return f"{reserved:.2f} G/{total:.2f} G"


class Environment:
    """What a process uses of its machine.

    Args:
        rows: A name and a value each.
    """

    def __init__(self, rows: Mapping[str, str]) -> None:
        self.rows = dict(rows)

    def draw(self) -> str:
        """Return the table as text."""
        table = {"Environment": "Usage", **self.rows}
        left, right = max(map(len, table)), max(map(len, table.values()))
        return "\n".join(f"| {name:<{left}} | {value:^{right}} |" for name, value in table.items())

    __str__ = draw


def get_environment(config: Any) -> Environment:
    """Return what the process uses of CPU, GPU and memory; `manifest.json` of a run says what machine it was."""
    on_gpu = torch.cuda.is_available() and config["use_gpu"]
    if sys.platform == "win32":
        raise ConfigError("get_environment asks Linux and macOS what is in use, and nothing on Windows; leave it out")
    used = peak_memory(torch.device("cpu")) or 0
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    rows = {
        "CPU": f"{100 * os.getloadavg()[0] / (os.cpu_count() or 1):.2f} %",
        "GPU": get_gpu_usage(config["device"]) if on_gpu else "0.0 / 0.0",
        "Memory": f"{used / 1024**3:.2f} G/{total / 1024**3:.2f} G",
    }
    return Environment(rows)


def get_flops(model: Any, dataset: Any, device: Any, logger: Any, transform: Any, verbose: bool = False) -> int:
    """Return how many operations the score of one row takes, with two for each multiplication and addition.

    RecBole counts one for both, and one for each number that is looked up in an embedding; here that is none.
    """
    rows = transform(dataset, dataset[torch.tensor([1])]).to(device)
    with looking(model), FlopCounterMode(display=False) as counter:
        model.predict(rows)
    if verbose:
        for name, counts in counter.get_flop_counts().items():
            logger.info("%s: %s", name, counts)
    return int(counter.get_total_flops())


def list_to_latex(
    convert_list: Sequence[Mapping[str, Any]], bigger_flag: bool = True, subset_columns: Sequence[str] = ()
) -> tuple[Any, str]:
    """Return the results of several models as a data frame, and as a table for LaTeX.

    Args:
        convert_list: For each model a dict of its results.
        bigger_flag: Whether the largest value of a column is the best one.
        subset_columns: The columns whose best value is bold.
    """
    names = list(dict.fromkeys(name for row in convert_list for name in row))
    best = {
        name: (max if bigger_flag else min)(row[name] for row in convert_list if name in row) for name in subset_columns
    }
    lines = ["\\begin{tabular}{" + "c" * len(names) + "}", "\\toprule", " & ".join(names) + " \\\\", "\\midrule"]
    for row in convert_list:
        cells = [_cell(row.get(name, ""), name in best and row.get(name) == best[name]) for name in names]
        lines.append(" & ".join(cells) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", ""]
    library = pandas("list_to_latex returns a data frame, which")
    return library.DataFrame(list(convert_list), columns=names), "\n".join(lines)


def _cell(value: Any, bold: bool) -> str:
    text = f"{value:.4f}" if isinstance(value, float) else str(value).replace("_", "\\_").replace("%", "\\%")
    return f"\\textbf{{{text}}}" if bold else text
