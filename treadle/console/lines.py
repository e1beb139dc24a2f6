"""Numbers, times and lines of the console, in one style for every door."""

from collections.abc import Iterable, Mapping
from typing import Any

DETAIL: Mapping[str, bool] = {"is_detail": True}
"""Given as `extra=` with what is logged for the log of a run, and is shown on the console only if that is verbose."""
SHORT = {"total_loss": "train", "evaluation_loss": "eval"}
"""What losses are called in a line, where that does not follow from their names."""
LOSS_OF_EPOCH = "_loss_epoch"
"""What the names of mean losses of epochs end with; on the console they are known without it."""


def number(value: Any) -> str:
    """Return a value as it is shown: floats with four decimals below one, and four digits above.

    >>> [number(value) for value in (0.94117, 1.8341, 27.724, 0.00003, 86826, 12345.6, "a")]
    ['0.9412', '1.834', '27.72', '3.0e-05', '86,826', '12,346', 'a']
    >>> [number(value) for value in (0.0, 1.0, float("nan"), True, [0.5, 2])]
    ['0.0000', '1.000', 'nan', 'True', '[0.5000, 2]']
    """
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(number, value))}]"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if 0 < size < 0.001:
        return f"{value:.1e}"
    if size < 1:
        return f"{value:.4f}"
    return f"{value:,.0f}" if 9999.5 <= size < 1e9 else f"{value:#.4g}"


def clock(seconds: float) -> str:
    """Return a span of time in its two largest units.

    >>> [clock(value) for value in (0.04, 9.94, 59.4, 62.1, 7500, 200_000)]
    ['0.0s', '9.9s', '59s', '1m02s', '2h05m', '2d07h']
    """
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for large, small, units in ((86400, 3600, "dh"), (3600, 60, "hm"), (60, 1, "ms")):
        if whole >= large:
            return f"{whole // large}{units[0]}{whole % large // small:02}{units[1]}"
    return f"{whole}s"


def counted(count: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(2, "epoch"), counted(1200, "step"), counted(2, "process"), counted(1, "batch")
    ('2 epochs', '1,200 steps', '2 processes', '1 batch')
    """
    ending = "" if count == 1 else "es" if noun.endswith(("s", "tch")) else "s"
    return f"{count:,} {noun}{ending}"


def line(*parts: str) -> str:
    """Return the parts of a line that say something, apart from each other.

    >>> line("epoch 1/3", "", "0.2s")
    'epoch 1/3  0.2s'
    """
    return "  ".join(part for part in parts if part)


def fields(values: Mapping[str, Any], *, best: bool = False) -> str:
    """Return metrics as they stand in a line: losses of training and evaluation first, by their short names.

    >>> fields({"accuracy": 0.941, "eval_loss_epoch": 0.198, "train_loss_epoch": 0.231}, best=True)
    'train 0.2310  eval 0.1980  accuracy 0.9410 *best'

    Args:
        values: The metrics.
        best: Whether they are the best so far.
    """
    told = [f"{short(name)} {number(values[name])}" for name in in_order(values)]
    return "  ".join(told) + (" *best" if best else "")


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of metrics as they are shown: of training first, then the loss of the evaluation, then others."""
    return sorted(names, key=lambda name: (_place(name), name))


def _place(name: str) -> int:
    if short(name) == "train":
        return 0
    if name.startswith("train"):
        return 1
    return 2 if short(name) == "eval" else 3 if "loss" in name else 4


def short(name: str) -> str:
    """Return the name that a metric has on the console.

    >>> [short(name) for name in ("train_loss_epoch", "total_loss", "eval_loss_epoch", "evaluation_loss", "accuracy")]
    ['train', 'train', 'eval', 'eval', 'accuracy']
    """
    return SHORT.get(name) or name.removesuffix(LOSS_OF_EPOCH)
