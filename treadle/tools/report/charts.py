"""The curves of a run: one for each metric, thinned to what a screen can show."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from treadle.events import names
from treadle.events.names import STEP_PART, TIME, WALL_TIME
from treadle.runs.metric_rows import is_number
from treadle.runs.reader import Start

MOST_POINTS = 1000
"""Points of one curve on a page: more than its pixels; all of them are in metrics.jsonl."""
EARLIEST = 1e9
"""Seconds since 1970 of a moment before any run; less is a duration."""
MOST_CURVES = 2000
"""Metrics of a run that are shown; more names than that are no metrics."""
KEPT = 8
"""How many times the points of a page a curve may have while it is read."""
NO_NUMBERS = ("nan", "inf", "-inf")
"""What metrics say for a value that JSON has no number for."""
POSITION = ("step", "epoch", WALL_TIME)
"""What a line of metrics says of where it stands."""


class Point(NamedTuple):
    """A value on a curve; one that is no finite number is None, and leaves a gap."""

    step: int
    seconds: float
    value: float | None


class Curves:
    """The curves of a run, thinned while they are fed: a run of any length takes the memory of a few screens.

    Args:
        starts: The starts of the run.
        most: Points that a curve has on a page.

    Attributes:
        seconds: How long the run has trained, up to its last row.
    """

    def __init__(self, starts: Iterable[Start] = (), most: int = MOST_POINTS) -> None:
        self._clock, self._most = Clock(starts), most
        self._points: dict[str, list[Point]] = {}
        self._epochs: dict[int, int] = {}
        self.seconds = 0.0

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Take in the next rows of the run."""
        for row, seconds in zip(rows, self._clock.seconds(rows), strict=True):
            # Files of earlier versions have one name for the moment of a line and, in the engine's, for the time of a
            # step.
            position = POSITION if WALL_TIME in row else (*POSITION, TIME)
            step = int(row.get("step", 0))
            self.seconds = max(self.seconds, seconds)
            epoch = row.get("epoch")
            if type(epoch) is int and epoch >= 0 and (epoch in self._epochs or len(self._epochs) < MOST_POINTS):
                self._epochs[epoch] = max(step, self._epochs.get(epoch, 0))
            for name, value in row.items():
                if name in position or not (isinstance(value, (int, float)) or value in NO_NUMBERS):
                    continue
                if name in self._points or len(self._points) < MOST_CURVES:
                    self._points.setdefault(name, []).append(Point(step, seconds, _finite(value)))
        for name, points in self._points.items():
            if len(points) > KEPT * self._most:
                self._points[name] = downsample(points, KEPT // 2 * self._most)

    @property
    def names(self) -> set[str]:
        """The names of the metrics."""
        return set(self._points)

    def plain(self, most: int | None = None) -> dict[str, dict[str, list[Any]]]:
        """Return the curves by the name of their metric, each as lists of steps, seconds and values.

        Args:
            most: Points of each, where they are to be fewer than those of a page of one run.
        """
        limit = self._most if most is None else min(most, self._most)
        return {name: _columns(downsample(points, limit)) for name, points in sorted(self._points.items())}

    def epoch_ends(self, each: int | None = None) -> list[tuple[int, int]]:
        """Return at which step each epoch ended, and how many were done by then; nothing of a run of one epoch.

        The epoch under way is taken to be as long as the one before it.

        Args:
            each: The steps of an epoch, where that is known.
        """
        ends = [(self._epochs[epoch], epoch + 1) for epoch in sorted(self._epochs)]
        if not ends or ends[-1][1] < 2:
            return []
        before, done = ends[-2] if len(ends) > 1 else (0, 0)
        earlier = ends[-3] if len(ends) > 2 else (0, 0)
        usual = each or (before - earlier[0]) // max(1, done - earlier[1])
        ends[-1] = (max(ends[-1][0], before + usual * (ends[-1][1] - done)), ends[-1][1])
        return ends


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except OverflowError:  # a whole number of more digits than there are
        return None
    return number if math.isfinite(number) else None


def _columns(points: list[Point]) -> dict[str, list[Any]]:
    return {
        "step": [point.step for point in points],
        "seconds": [round(point.seconds, 3) for point in points],
        "value": [None if point.value is None else float(f"{point.value:.6g}") for point in points],
    }


class Clock:
    """Says when rows were written, in seconds of training: the time between two starts does not count.

    Rows may come bit by bit.

    >>> rows = [{"step": 1, "wall_time": 10.0, "time": 0.5}, {"step": 2, "wall_time": 110.0, "time": 0.5}]
    >>> Clock([Start(0, 5.0), Start(1, 100.0)]).seconds(rows)
    [5.0, 15.0]

    Files of earlier versions say `time` for it. The engine's have the seconds of a step there, which add up.

    >>> Clock().seconds([{"step": 0, "time": 2e9}, {"step": 2, "time": 0.5}, {"step": 4, "time": 1.0}])
    [0.0, 1.0, 3.0]
    >>> Clock([Start(0, 5.0), Start(1, 100.0)]).seconds([{"step": 0, "time": 10.0}, {"step": 1, "time": 101.0}])
    [5.0, 6.0]

    Args:
        starts: The starts of the run.
    """

    def __init__(self, starts: Iterable[Start] = ()) -> None:
        self._pending = [start for start in starts if start.time is not None]
        begun = self._pending.pop(0).time if self._pending else None
        self._origin: float | None = begun
        self._idle, self._before, self._last = 0.0, begun or 0.0, 0

    def seconds(self, rows: Sequence[dict[str, Any]]) -> list[float]:
        """Return the seconds of the next rows."""
        moments = _moments(rows)
        if self._origin is None and rows:
            self._origin = self._before = moments[0] or 0.0
        origin = self._origin or 0.0
        return [self._seconds(row, moment, origin) for row, moment in zip(rows, moments, strict=True)]

    def _seconds(self, row: dict[str, Any], moment: float | None, origin: float) -> float:
        time, step = self._before if moment is None else moment, int(row.get("step", 0))
        if WALL_TIME not in row and time < min(origin, EARLIEST):
            time = self._before + time * max(0, step - self._last)
        self._last = step
        while self._pending and self._pending[0].step <= step and (self._pending[0].time or 0.0) <= time:
            start = self._pending.pop(0).time or 0.0
            self._idle += max(0.0, start - self._before)
            self._before = max(self._before, start)
        self._before = max(self._before, time)
        return max(0.0, time - origin - self._idle)


def _moments(rows: Sequence[dict[str, Any]]) -> list[float | None]:
    """Return when each row was, as far as it says so.

    Rows of several steps are written together, at the end of the last: where they know how long a step took, each is
    that long before the next.

    >>> _moments([{"wall_time": 9.0}, {"wall_time": 20.0}, {"wall_time": 20.0, "time": 2.0}])
    [9.0, 18.0, 20.0]
    """
    found: list[float | None] = []
    after: float | None = None
    for row in reversed(rows):
        if WALL_TIME not in row:
            found.append(float(row[TIME]) if is_number(row.get(TIME)) else None)
            continue
        moment = float(row[WALL_TIME])
        moment = moment if after is None else min(moment, after)
        found.append(moment)
        taken = row.get(TIME)
        # A metric of the user's may have that name, and be anything.
        after = moment - (taken if isinstance(taken, (int, float)) and 0 <= taken < EARLIEST else 0.0)
    return found[::-1]


def downsample(points: list[Point], most: int) -> list[Point]:
    """Return at most `most` of the points: the first, the last, and the lowest and highest of each stretch.

    >>> [point.step for point in downsample([Point(step, 0.0, -abs(step - 50)) for step in range(100)], 8)]
    [0, 1, 32, 33, 50, 66, 98, 99]
    """
    if len(points) <= most:
        return points
    stretches = max(1, (most - 2) // 2)
    kept = {0, len(points) - 1}
    inner = len(points) - 2
    for part in range(stretches):
        stretch = range(1 + part * inner // stretches, 1 + (part + 1) * inner // stretches)
        finite = [(points[place].value, place) for place in stretch if points[place].value is not None]
        if finite:
            kept |= {min(finite)[1], max(finite)[1]}
        elif len(stretch):
            kept.add(stretch[0])
    return [points[place] for place in sorted(kept)]


# Which curves belong into which picture of a page


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
SPEEDS = (names.TOKENS_PER_SECOND, names.SAMPLES_PER_SECOND, names.STEPS_PER_SECOND, names.TIME)
"""The same thing said in several units: the first that a page has is shown."""
HIDDEN = {names.ETA_SECONDS}
OVERALL = ("loss", names.TOTAL_LOSS, "evaluation_loss")
"""What the loss as a whole is called; other losses are parts of it, and of another size."""


@dataclass(frozen=True)
class Chart:
    """A picture of some metrics.

    Attributes:
        section: The part of the page it stands in.
        title: What is written over it.
        metrics: What it shows, for every run.
        stacked: Whether they are parts of a whole.
        smooth: Whether curves that are noisy may be smoothed: what was chosen, as a rate is, has no noise.
    """

    section: str
    title: str
    metrics: tuple[str, ...]
    stacked: bool = False
    smooth: bool = True

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def group_charts(metrics: Iterable[str]) -> list[Chart]:
    """Return the pictures of these metrics, in the order of the page.

    >>> [(chart.title, chart.metrics) for chart in group_charts(["train_loss", "eval_loss_epoch", "lr", "accuracy"])]
    [('Loss', ('train_loss', 'eval_loss_epoch')), ('accuracy', ('accuracy',)), ('Learning rate', ('lr',))]
    """
    left = sorted(set(metrics) - HIDDEN, key=lambda name: (is_evaluation(name), name))
    charts: list[Chart] = []

    def take(section: str, title: str, chosen: list[str], stacked: bool = False, smooth: bool = True) -> None:
        if chosen:
            charts.append(Chart(section, title, tuple(chosen), stacked, smooth))
            left[:] = [name for name in left if name not in chosen]

    take("Curves", "Loss", [name for name in left if is_loss(name) and _base(name).removesuffix("_epoch") in OVERALL])
    take("Curves", "Parts of the loss", [name for name in left if is_loss(name)])
    rates = [name for name in left if name == names.LR or name.startswith(f"{names.LR}/")]
    norms = [name for name in left if name in GRADIENTS]
    parts = [name for name in left if name.startswith(STEP_PART)]
    machine = [name for name in TITLES if name in left]
    rest = [name for name in left if name not in (*rates, *norms, *parts, *machine)]
    grouped = [name for name in rest if _group(name)]
    for base in dict.fromkeys(_base(name) for name in rest if name not in grouped):
        take("Curves", base, [name for name in rest if _base(name) == base])
    take("Curves", "Learning rate", rates, smooth=False)
    take("Curves", "Gradient norm", norms)
    for group in dict.fromkeys(map(_group, grouped)):
        take(group.split("/")[0].capitalize(), group, [name for name in grouped if _group(name) == group])
    take("Machine", "Where the time of a step goes, milliseconds", parts, stacked=True, smooth=False)
    for name in machine:
        take("Machine", TITLES[name], [name])
    return charts


Series = Mapping[str, Mapping[str, list[Any]]]
"""The curves of a run, as `Curves.plain` returns them."""


def repeated(runs: Sequence[Series]) -> dict[str, str]:
    """Return the metrics that say what another one says in every run that has them, each with that other one.

    >>> once = {"step": [2, 4], "seconds": [0.0, 1.0], "value": [0.5, 0.75]}
    >>> repeated([{"valid_ndcg@10": once, "valid_score": once, "train_loss": once, "train_loss_epoch": once}])
    {'train_loss_epoch': 'train_loss', 'valid_score': 'valid_ndcg@10'}
    """
    present = sorted({name for run in runs for name in run}, key=_preference)
    same: dict[str, str] = {}
    for name in present:
        closer = name.removesuffix("_epoch").removesuffix("_sum")
        if closer != name and closer in present and all(_is_finer(run, closer, name) for run in runs if name in run):
            same[name] = closer
    speeds = [name for name in SPEEDS if name in present]
    same |= {name: speeds[0] for name in speeds[1:] if all(speeds[0] in run for run in runs if name in run)}
    left = [name for name in present if name not in same]
    seen: dict[Any, str] = {}
    for name in left:
        drawn = tuple(_drawn(run.get(name)) for run in runs)
        # By chance two metrics may have one value, or stay at it.
        if any(curve is not None and len(set(curve[1])) > 1 for curve in drawn):
            first = seen.setdefault((_kind(name), drawn), name)
            if first != name:
                same[name] = first
    return dict(sorted(same.items()))


def _preference(name: str) -> tuple[bool, bool, int, str]:
    return name.endswith("score"), _base(name).removesuffix("_epoch") not in OVERALL, len(name), name


def _kind(name: str) -> str:
    """Return what must be alike of two metrics before they can be the same one."""
    if name in TITLES or name in GRADIENTS or name.startswith(STEP_PART) or _group(name):
        return name
    if name == names.LR or name.startswith(f"{names.LR}/"):
        return names.LR
    return f"evaluation {is_loss(name)}" if is_evaluation(name) else f"other {is_loss(name)}"


def _is_finer(run: Mapping[str, Mapping[str, list[Any]]], finer: str, name: str) -> bool:
    return finer in run and len(run[finer]["step"]) >= len(run[name]["step"])


def _drawn(curve: Mapping[str, list[Any]] | None) -> tuple[Any, Any] | None:
    return None if curve is None else (tuple(curve["step"]), tuple(curve["value"]))


def is_drawn(metric: str, runs: Iterable[Series]) -> bool:
    """Whether a metric has a curve in any run: two values, not a single dot."""
    curves = (run[metric]["value"] for run in runs if metric in run)
    return any(sum(value is not None for value in values) > 1 for values in curves)


def is_loss(name: str) -> bool:
    """Whether a metric is a loss over samples, which belongs into one picture with its like."""
    return name.removesuffix("_epoch").endswith("loss")


@lru_cache(4096)  # asked for every value of every line
def is_evaluation(name: str) -> bool:
    """Whether a metric is of an evaluation."""
    return name.replace("/", "_").split("_")[0] in EVALUATIONS


@lru_cache(4096)
def is_evaluation_metric(name: str) -> bool:
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
