"""What a trial tells the search: intermediate results while it trains, and one final result."""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from treadle.callbacks.watched_metric import EVALUATION_LOSS, WatchesMetric
from treadle.console.metric_names import find_name
from treadle.errors import TreadleError

if TYPE_CHECKING:
    from treadle.loop.interfaces import RunningTrainer

logger = logging.getLogger(__name__)

DEFAULT = "default"
"""The key of a reported mapping that drives a search of one objective without a name."""

Metrics = dict[str, float]


class ReportError(TreadleError, ValueError):
    """A trial reported something that is no result, or reported it at the wrong time."""


class PrunedError(Exception):
    """Not an error: the search told the trial to stop at this report, because others do better."""


class Reporter(Protocol):
    """Where reports of the running trial go."""

    def intermediate(self, metrics: Metrics, step: int | None) -> bool:
        """Take an intermediate result, and return whether the trial is to stop."""

    def final(self, metrics: Metrics) -> None:
        """Take the final result."""


_reporter: ContextVar[Reporter | None] = ContextVar("where the running trial reports to", default=None)
_trial: ContextVar[int | None] = ContextVar("the number of the running trial", default=None)


@contextmanager
def report_trial_to(reporter: Reporter, number: int | None = None) -> Iterator[None]:
    """Send what is reported inside the block to `reporter`; `number` is that of the trial."""
    tokens = _reporter.set(reporter), _trial.set(number)
    try:
        yield
    finally:
        _reporter.reset(tokens[0])
        _trial.reset(tokens[1])


def current_trial() -> int | None:
    """Return the number of the trial that is running here; None outside a search.

    >>> current_trial() is None
    True
    """
    return _trial.get()


def report_intermediate_result(result: Any, *, step: int | None = None) -> None:
    """Report how a trial is doing, once per epoch or as often as you like.

    Results are numbered from 0 in the order in which they are reported. Outside a search this is a line in the log.
    On several processes every one of them may report: what process 0 says counts, and all learn of a stop.

    >>> report_intermediate_result({"default": 0.91, "loss": 0.3})

    Args:
        result: A number, a tensor or array of one number, or a mapping of names to such. Of a mapping, `default`
            (or the name of the objective) drives the search, and the rest is stored.
        step: The number of the result, larger than the one before; a trial that goes on in the middle of its
            training says where it is. None counts.

    Raises:
        ReportError: It is none of these.
        PrunedError: The search wants this trial to stop. Let it through.
    """
    metrics = parse_metrics(result, "report_intermediate_result")
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
        raise ReportError(f"report_intermediate_result(..., step={step!r}): a step is a whole number from 0 up")
    reporter = _reporter.get()
    if reporter is None:
        logger.info("intermediate result (no search is running): %s", shown(metrics))
    elif reporter.intermediate(metrics, step):
        raise PrunedError(f"the search stopped the trial at {shown(metrics)}")


def report_final_result(result: Any) -> None:
    """Report what a trial achieved. It is said once: a second final result is an error.

    Args:
        result: As for `report_intermediate_result`. A search of several objectives needs each of them by name.

    Raises:
        ReportError: It is no result, the final result was reported already, or an objective is missing.
    """
    metrics = parse_metrics(result, "report_final_result")
    reporter = _reporter.get()
    if reporter is None:
        logger.info("final result (no search is running): %s", shown(metrics))
    else:
        reporter.final(metrics)


def parse_metrics(result: Any, where: str) -> Metrics:
    """Return a reported result as floats by name; a single number is called `default`.

    >>> parse_metrics(3, "f"), parse_metrics({"loss": 0.5}, "f")
    ({'default': 3.0}, {'loss': 0.5})

    Args:
        result: What was reported.
        where: The function that was given it, for messages.

    Raises:
        ReportError: It is no number and no mapping of numbers.
    """
    if not isinstance(result, Mapping):
        return {DEFAULT: _number(result, f"{where}({_short(result)})")}
    if not result:
        raise ReportError(f"{where}({{}}): the mapping is empty; give a number, or numbers by name")
    names = [name for name in result if not isinstance(name, str)]
    if names:
        raise ReportError(f"{where}: the key {names[0]!r} is no text; metrics are named by text")
    return {name: _number(value, f"{where}: {name!r} is {_short(value)}, which") for name, value in result.items()}


def _number(value: Any, where: str) -> float:
    reason = f"{where} is no number; report a number, a tensor or array of one number, or a mapping of names to such"
    if value is None or isinstance(value, (str, bytes, bool)):
        raise ReportError(reason)
    count = getattr(value, "numel", None) or getattr(value, "size", None)
    count = count() if callable(count) else count
    if isinstance(count, int) and count != 1:
        raise ReportError(f"{where} holds {count} numbers; report one, such as their mean")
    try:
        # item() reads a tensor or array of any shape with one number in it; a result is read from the device here.
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ReportError(reason) from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def shown(metrics: Mapping[str, float]) -> str:
    """Return metrics in words; a lone `default` is just its value.

    >>> shown({"default": 0.5}), shown({"default": 0.5, "loss": 1.25})
    ('0.5', 'default 0.5, loss 1.25')
    """
    if list(metrics) == [DEFAULT]:
        return f"{metrics[DEFAULT]:.6g}"
    return ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())


def nonfinite_names(metrics: Mapping[str, float]) -> list[str]:
    """Return the names of the metrics that are nan or infinite."""
    return [name for name, value in metrics.items() if not math.isfinite(value)]


def objective_values(metrics: Mapping[str, float], objectives: list[str], what: str) -> list[float]:
    """Return the values of the objectives, in their order.

    Args:
        metrics: What was reported.
        objectives: The names, as the core has them or the door of the trial; one alone may be reported as `default`.
        what: The report, for messages.

    Raises:
        ReportError: One is not there.
    """
    if len(objectives) == 1:
        known = find_name(objectives[0], metrics)
        name = known if known in metrics else DEFAULT
        if name in metrics:
            return [metrics[name]]
        wanted = f"{DEFAULT!r}" if objectives == [DEFAULT] else f"{objectives[0]!r} or {DEFAULT!r}"
        raise ReportError(f"{what} has {sorted(metrics)}, but not {wanted}, which drives the search")
    named = [find_name(name, metrics) for name in objectives]
    missing = [name for name, found in zip(objectives, named, strict=True) if found not in metrics]
    if missing:
        raise ReportError(
            f"{what} has {sorted(metrics)}, but the search has the objectives {objectives}; add {missing}"
        )
    return [metrics[name] for name in named]


# A training of any trainer as a trial: its evaluations are what the search hears


class ReportTrialCallback(WatchesMetric):
    """Reports every new value of a metric to the search, which may end the training there.

    Values are numbered from 0; a trial that goes on after a kill goes on counting. Outside a search a report is a line
    in the log.

    Args:
        watch_metric: The metric.
    """

    def __init__(self, watch_metric: str = EVALUATION_LOSS) -> None:
        super().__init__(watch_metric, greater_is_better=False)

    def new_value(self, trainer: "RunningTrainer", value: float) -> None:
        """Report a value.

        Raises:
            PrunedError: The search wants this trial to stop.
        """
        known = trainer.run_history.get_metric_values(self.watch_metric)
        report_intermediate_result(value, step=len(known) - 1)
