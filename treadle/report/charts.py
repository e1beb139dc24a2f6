"""Which curves belong into which picture of a page."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from treadle.events import names
from treadle.report.series import POSITION

STEP_PART = "step_time/"
"""What the name of a part of a step's time begins with."""
EVALUATIONS = ("eval", "valid", "val", "test")
"""What the names of metrics of an evaluation begin with."""
GRADIENTS = ("gradient_norm", "grad_norm")
TITLES = {
    names.SAMPLES_PER_SECOND: "Samples per second",
    names.STEPS_PER_SECOND: "Steps per second",
    names.TOKENS_PER_SECOND: "Tokens per second",
    names.MFU: "Share of the device's peak (MFU)",
    names.PEAK_MEMORY_MIB: "Peak memory, MiB",
    names.TIME: "Seconds per step",
    names.DATA_TIME: "Seconds per step spent waiting for data",
    "loss_scale": "Loss scale",
    "skipped_steps": "Skipped steps",
}
HIDDEN = {names.ETA_SECONDS}


@dataclass(frozen=True)
class Chart:
    """A picture of some metrics.

    Attributes:
        section: The part of the page it stands in.
        title: What is written over it.
        metrics: What it shows, for every run.
        stacked: Whether they are parts of a whole.
    """

    section: str
    title: str
    metrics: tuple[str, ...]
    stacked: bool = False

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def charts_of(metrics: Iterable[str]) -> list[Chart]:
    """Return the pictures of these metrics, in the order of the page.

    >>> [(chart.title, chart.metrics) for chart in charts_of(["train_loss", "eval_loss_epoch", "lr", "accuracy"])]
    [('Loss', ('train_loss', 'eval_loss_epoch')), ('accuracy', ('accuracy',)), ('Learning rate', ('lr',))]
    """
    left = sorted(set(metrics) - HIDDEN, key=lambda name: (is_evaluation(name), name))
    charts: list[Chart] = []

    def take(section: str, title: str, chosen: list[str], stacked: bool = False) -> None:
        if chosen:
            charts.append(Chart(section, title, tuple(chosen), stacked))
            left[:] = [name for name in left if name not in chosen]

    take("Curves", "Loss", [name for name in left if is_loss(name)])
    rates = [name for name in left if name == names.LR or name.startswith(f"{names.LR}/")]
    norms = [name for name in left if name in GRADIENTS]
    parts = [name for name in left if name.startswith(STEP_PART)]
    machine = [name for name in TITLES if name in left]
    rest = [name for name in left if name not in (*rates, *norms, *parts, *machine)]
    grouped = [name for name in rest if _group(name)]
    for base in dict.fromkeys(_base(name) for name in rest if name not in grouped):
        take("Curves", base, [name for name in rest if _base(name) == base])
    take("Curves", "Learning rate", rates)
    take("Curves", "Gradient norm", norms)
    for group in dict.fromkeys(map(_group, grouped)):
        take(group.split("/")[0].capitalize(), group, [name for name in grouped if _group(name) == group])
    take("Machine", "Where the time of a step goes, milliseconds", parts, stacked=True)
    for name in machine:
        take("Machine", TITLES[name], [name])
    return charts


def is_loss(name: str) -> bool:
    """Whether a metric is a loss over samples, which belongs into one picture with its like."""
    return name.removesuffix("_epoch").endswith("loss")


@lru_cache(4096)  # asked for every value of every line
def is_evaluation(name: str) -> bool:
    """Whether a metric is of an evaluation."""
    return name.replace("/", "_").split("_")[0] in EVALUATIONS


@lru_cache(4096)
def of_evaluations(name: str) -> bool:
    """Whether a metric in the line of an evaluation is that evaluation's: it may have any name of the user's."""
    other = name in POSITION or name in TITLES or name in HIDDEN or name in GRADIENTS
    training = name.startswith(("train_", "train/", STEP_PART, f"{names.LR}/")) or name in (names.LR, names.TOTAL_LOSS)
    return not other and not training


def _group(name: str) -> str:
    """Return what metrics have in common that are parts of one thing: "a/b" of "a/b/c", and nothing of "a/b".

    >>> _group("architecture/op/conv"), _group("train/loss")
    ('architecture/op', '')
    """
    return name.rpartition("/")[0] if name.count("/") > 1 else ""


def _base(name: str) -> str:
    """Return what training and evaluation both call a metric: "accuracy" of "eval_accuracy"."""
    for start in ("train", *EVALUATIONS):
        for join in "_/":
            if name.startswith(start + join):
                return name.removeprefix(start + join)
    return name
