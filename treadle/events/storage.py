"""Where a run puts its metrics: on the device until a log is due, then one copy to the host."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from treadle.console.metric_names import find_name
from treadle.errors import ConfigError, UnknownMetricError, did_you_mean
from treadle.events.flattening import is_number
from treadle.events.history_buffer import HistoryBuffer, Kind, Series, median_value
from treadle.events.media import MEDIA_WINDOW, Histogram, Image, check_image, count_values
from treadle.events.pending import read_values
from treadle.progress import Progress

# Which storage is the one to put into: the innermost that was entered


_own: ContextVar[tuple["EventStorage", ...]] = ContextVar("treadle_event_storages", default=())
_all: list["EventStorage"] = []


def get_event_storage() -> "EventStorage":
    """Return the storage of the run under way, to put metrics into from inside a model.

    It is the innermost that this thread entered. A thread that entered none, such as autograd's when it runs a
    model a second time for checkpointed activations, finds the one of the process if there is a single one.

    Raises:
        ConfigError: There is no run under way, or several in other threads.
    """
    if own := _own.get():
        return own[-1]
    entered = {id(storage): storage for storage in list(_all)}
    if len(entered) == 1:
        return next(iter(entered.values()))
    if not entered:
        raise ConfigError(
            "get_event_storage() was called while nothing trains; ask has_event_storage() first, "
            "or use `with EventStorage():`"
        )
    raise ConfigError(
        f"get_event_storage() was called in a thread without a storage, and {len(entered)} other threads have one; "
        "enter the one that is meant, by `with storage:`"
    )


def has_event_storage() -> bool:
    """Whether `get_event_storage` would return one."""
    return bool(_own.get()) or len({id(storage) for storage in list(_all)}) == 1


def enter(storage: "EventStorage") -> None:
    """Make `storage` the innermost."""
    _own.set((*_own.get(), storage))
    _all.append(storage)


def leave(storage: "EventStorage") -> None:
    """Take the innermost entry of `storage` back."""
    own = list(_own.get())
    for entries in (own, _all):
        places = [place for place, entry in enumerate(entries) if entry is storage]
        if places:
            del entries[places[-1]]
    _own.set(tuple(own))


@dataclass(frozen=True, slots=True, eq=False)
class Life:
    """A stretch of a run that one storage saw from its start, or from the checkpoint it went on from.

    Attributes:
        kept: The last iteration taken over from an earlier life; -1 if the run began here.
        sequence: How many values the storage had been given before.
    """

    kept: int
    sequence: int


class EventStorage:
    """Metrics by name, put as numbers or device tensors and read from the device only by `flush`.

    Whatever returns a value of a metric flushes first; whatever puts one never reads the device. Inside of
    `with storage:`, `get_event_storage()` returns it.

    Args:
        start_iter: The iteration that the first values belong to.

    Attributes:
        on_flush: Called with the (name, step, value, kind) of everything that came to the host.
        life: What of the metrics is of this run, for writers to know what they have written before.
    """

    def __init__(self, start_iter: int = 0) -> None:
        self._series: dict[tuple[str, Kind], Series] = {}
        self._hints: dict[tuple[str, Kind], bool] = {}
        self._pending: list[tuple[str, int, Any, Kind]] = []
        self._images: deque[Image] = deque(maxlen=MEDIA_WINDOW)
        self._histograms: deque[Histogram] = deque(maxlen=MEDIA_WINDOW)
        self._prefix = ""
        self._sequence = 0
        self.progress = Progress(step=start_iter)
        self.on_flush: Callable[[list[tuple[str, int, Any, str]]], None] | None = None

    def __enter__(self) -> Self:
        enter(self)
        return self

    def __exit__(self, *exception: object) -> None:
        leave(self)

    # Where the run is -------------------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """Where the run is; to set it begins a new life, at its step."""
        return self._progress

    @progress.setter
    def progress(self, progress: Progress) -> None:
        """Follow another progress, from its step on."""
        self._progress = progress
        self._iter: int | None = None
        self._samples: int | None = None
        self.life = Life(progress.step - 1, self._sequence)

    @property
    def iter(self) -> int:
        """The iteration that values put now belong to: the step of the run, unless it was set."""
        return self._progress.step if self._iter is None else self._iter

    @iter.setter
    def iter(self, iteration: int) -> None:
        """Say which iteration it is, whatever the progress says."""
        self._iter = int(iteration)

    def step(self) -> None:
        """Go on to the next iteration, in a loop that has no trainer."""
        self.iter += 1

    @property
    def samples(self) -> int:
        """How many samples were trained on: those of the run's progress, unless it was set."""
        return self._progress.samples if self._samples is None else self._samples

    @samples.setter
    def samples(self, samples: int) -> None:
        """Say how many samples it were, whatever the progress says."""
        self._samples = int(samples)

    # Putting ----------------------------------------------------------------------------------------------

    def put_scalar(
        self,
        name: str,
        value: Any,
        smoothing_hint: bool = True,
        cur_iter: int | None = None,
        *,
        step: int | None = None,
        kind: Kind = "step",
    ) -> None:
        """Record `value` under `name`; a tensor stays where it is until the next `flush`.

        Args:
            name: The name, after the scopes in force.
            value: One number, on the host or on a device; metrics of epochs may be other plain data.
            smoothing_hint: Whether writers show the median of a window rather than the value itself; always the
                same for a name, and of no effect on metrics of epochs, which are shown as they are.
            cur_iter: The iteration it belongs to; by default the one the run is at.
            step: The same as `cur_iter`.
            kind: Whether it is a scalar of steps or a metric of epochs.

        Raises:
            ConfigError: The value is no single number, or the hint is not what it was.
        """
        name = self._prefix + name
        if isinstance(value, Tensor):
            value = value.detach()
        if kind == "step":
            value = _one_number(name, value)
            self._check_hint(name, bool(smoothing_hint))
        iteration = cur_iter if step is None else step
        self._pending.append((name, self.iter if iteration is None else iteration, value, kind))

    def put_scalars(
        self,
        scalars: Mapping[str, Any] | None = None,
        /,
        *,
        smoothing_hint: bool = True,
        cur_iter: int | None = None,
        **more: Any,
    ) -> None:
        """Record several scalars, by keyword or, whatever their names, in a mapping.

        >>> storage = EventStorage()
        >>> storage.put_scalars({"Acc@1": 0.5, "cur_iter": 3.0}, loss=2.0)
        >>> sorted(storage.latest())
        ['Acc@1', 'cur_iter', 'loss']
        """
        for name, value in {**(scalars or {}), **more}.items():
            self.put_scalar(name, value, smoothing_hint, cur_iter)

    def put_image(self, img_name: str, img_tensor: Any) -> None:
        """Record a picture of (channels, height, width): uint8 from 0 to 255, or floats from 0 to 1."""
        name = self._prefix + img_name
        pixels = check_image(name, img_tensor)
        self._images.append(Image(name, pixels, self.iter, self._next_sequence()))

    def put_histogram(self, hist_name: str, hist_tensor: Any, bins: int = 1000) -> None:
        """Record how the values of a tensor are distributed, counted where the tensor is."""
        name = self._prefix + hist_name
        counts, facts = count_values(name, hist_tensor, bins)
        self._histograms.append(Histogram(name, counts, facts, self.iter, self._next_sequence()))

    @contextmanager
    def name_scope(self, name: str) -> Iterator[None]:
        """Put `name/` before every name inside of the block; scopes can be nested."""
        before = self._prefix
        self._prefix = f"{before}{name.rstrip('/')}/"
        try:
            yield
        finally:
            self._prefix = before

    @contextmanager
    def diverted(self) -> Iterator[list[tuple[str, int, Any, Kind]]]:
        """Let what is put inside of the block go into the list it gives, to be put by `repeat` once or often."""
        pending, self._pending = self._pending, []
        try:
            yield self._pending
        finally:
            self._pending = pending

    def repeat(self, rows: list[tuple[str, int, Any, Kind]]) -> None:
        """Put what was diverted, as it is now and at this iteration; tensors are copied where they are."""
        for name, _, value, kind in rows:
            self._pending.append((name, self.iter, value.clone() if isinstance(value, Tensor) else value, kind))

    def _check_hint(self, name: str, hint: bool) -> None:
        known = self._hints.setdefault((name, "step"), hint)
        if known != hint:
            raise ConfigError(
                f"the metric {name!r} was put with smoothing_hint={known} before and with {hint} now; "
                "use one of them throughout, or another name"
            )

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    # Reading ----------------------------------------------------------------------------------------------

    def flush(self) -> dict[str, Any]:
        """Bring everything pending to the host, one copy in all, and return the latest value of each name."""
        pending, self._pending = self._pending, []
        values = read_values([value for _, _, value, _ in pending])
        latest: dict[str, Any] = {}
        for (name, step, _, kind), value in zip(pending, values, strict=True):
            series = self._series.setdefault((name, kind), Series(kind))
            series.append(step, value)
            series.smoothing = self._hints.get((name, kind), False)
            series.sequence = self._next_sequence()
            latest[name] = value
        if self.on_flush is not None and pending:
            self.on_flush([(row[0], row[1], value, row[3]) for row, value in zip(pending, values, strict=True)])
        return latest

    @property
    def sequence(self) -> int:
        """How many values, images and histograms there were so far; what comes later has a greater number."""
        self.flush()
        return self._sequence

    def series(self, name: str, kind: Kind | None = None) -> Series:
        """Return the series called `name`; if it is of both kinds and none is asked for, that of steps.

        Where nothing has that name, another name of the same quantity counts, as `total_loss` does for `train_loss`.

        Raises:
            UnknownMetricError: Nothing was put under that name.
        """
        self.flush()
        for wanted in ("step", "epoch") if kind is None else (kind,):
            if (name, wanted) in self._series:
                return self._series[name, wanted]
        known = sorted(self.names(kind))
        other = find_name(name, known)
        if other in known:
            return self.series(other, kind)
        raise UnknownMetricError(f"no metric {name!r} was reported{did_you_mean(name, known)}; known: {known}")

    def names(self, kind: Kind | None = None) -> set[str]:
        """Return the names of all metrics, or of those of one kind."""
        self.flush()
        return {name for name, own in self._series if kind in (None, own)}

    def history(self, name: str) -> HistoryBuffer:
        """Return the past of the metric called `name`.

        Raises:
            UnknownMetricError: Nothing was put under that name.
        """
        return HistoryBuffer(series=self.series(name))

    def count_samples(self, name: str, window_size: int = 20) -> int:
        """Return how many values a metric has in the last `window_size` iterations, counted back from its newest.

        >>> storage = EventStorage()
        >>> for iteration in (0, 10, 15, 20):
        ...     storage.put_scalar("loss", 1.0, cur_iter=iteration)
        >>> storage.count_samples("loss", window_size=10)
        2
        """
        return len(self.series(name).window(window_size))

    def histories(self) -> dict[str, HistoryBuffer]:
        """Return the past of every metric by its name."""
        return {name: self.history(name) for name in sorted(self.names())}

    def newest(self) -> dict[str, Series]:
        """Return for each name its series, of two kinds the one with the newer value."""
        self.flush()
        found: dict[str, Series] = {}
        for (name, _), series in self._series.items():
            if name not in found or series.sequence > found[name].sequence:
                found[name] = series
        return found

    def latest(self) -> dict[str, tuple[Any, int]]:
        """Return the newest value of every metric with its iteration."""
        return {name: (series.values[-1], series.steps[-1]) for name, series in self.newest().items()}

    def smoothing_hints(self) -> dict[str, bool]:
        """Return for every metric whether it is to be smoothed."""
        return {name: series.smoothing for name, series in self.newest().items()}

    def latest_with_smoothing_hint(self, window_size: int = 20) -> dict[str, tuple[Any, int]]:
        """Return what to show of every metric, with its iteration.

        That is the median over the last `window_size` iterations where the metric is to be smoothed, else its
        newest value.
        """
        return {name: (shown(series, window_size), series.steps[-1]) for name, series in self.newest().items()}

    def images(self, since: int = 0) -> list[Image]:
        """Return the pictures put after the one with the sequence number `since`, the oldest first."""
        return [image for image in self._images if image.sequence > since]

    def histograms(self, since: int = 0) -> list[Histogram]:
        """Return the histograms put after the one with the sequence number `since`, the oldest first."""
        return [histogram for histogram in self._histograms if histogram.sequence > since]

    # Forgetting and keeping -------------------------------------------------------------------------------

    def clear_images(self) -> None:
        """Forget every picture; writers need no such help, for only the newest are kept."""
        self._images.clear()

    def clear_histograms(self) -> None:
        """Forget every histogram."""
        self._histograms.clear()

    def delete(self, name: str, kind: Kind | None = None) -> None:
        """Forget the metric called `name`, of both kinds or of one."""
        self.flush()
        for own in ("step", "epoch") if kind is None else (kind,):
            self._series.pop((name, own), None)
            self._hints.pop((name, own), None)

    def clear(self) -> None:
        """Forget everything that was put."""
        self._series, self._hints, self._pending = {}, {}, []
        self.clear_images()
        self.clear_histograms()

    def state_dict(self) -> dict[str, Any]:
        """Return every series as plain data; pictures and histograms are not kept."""
        self.flush()
        state: dict[str, Any] = {}
        for (name, _), series in self._series.items():
            if name in state:
                state[name]["other"] = series.state_dict()
            else:
                state[name] = series.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any], *, iteration: int | None = None) -> None:
        """Replace every series by those of `state`, and begin a new life.

        Args:
            state: What `state_dict` returned.
            iteration: The iteration at which that was; by default the last that a value belongs to.
        """
        self.clear()
        for name, entry in state.items():
            for one in (entry, entry["other"]) if "other" in entry else (entry,):
                series = Series.from_state(one)
                self._series[name, series.kind] = series
        steps = [series.steps[-1] for series in self._series.values() if series.steps]
        self.life = Life(max(steps, default=-1) if iteration is None else iteration, self._sequence)


def shown(series: Series, window_size: int) -> Any:
    """Return the value of a metric to show: the median of its window if it is to be smoothed, else its newest."""
    return median_value(series.window(window_size)) if series.smoothing else series.values[-1]


def _one_number(name: str, value: Any) -> Any:
    """Return `value` if it is a tensor or a number of Python's, else as one."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ConfigError(
            f"the metric {name!r} was given a tensor of the shape {tuple(value.shape)}; put one number, such as its "
            "mean, or use put_histogram"
        )
    if isinstance(value, (Tensor, int, float)):
        return value
    if not is_number(value):
        raise ConfigError(f"the metric {name!r} was given {value!r}, a {type(value).__name__}; put one number")
    return value.item() if hasattr(value, "item") else float(value)
