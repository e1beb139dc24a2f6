"""The metrics by name, and the decorator that adds one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from treadle.errors import ConfigError, did_you_mean

Kind = Literal["ranking", "pairs", "catalogue", "labelled", "collected"]
"""What a metric is calculated from: see `register_metric`; `collected` ones are classes, see `AbstractMetric`."""
FUNCTIONS = ("ranking", "pairs", "catalogue", "labelled")
"""The kinds of metrics that are functions."""
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Metric:
    """A metric as it was registered.

    Attributes:
        name: As configurations write it, such as `NDCG`; results use it in lower case.
        kind: What its function is given.
        function: Calculates it.
        smaller: Whether a smaller value is a better one.
        needs_item_counts: Whether it looks at how often items were used in training.
        rates_positives: Whether it says something about positives, so that it can be told for some of them only.
        needs: Of a class, what it is calculated from.
        cutoff: Of a class of rankings, whether there is a value for each k.
    """

    name: str
    kind: Kind
    function: Callable[..., Any]
    smaller: bool = False
    needs_item_counts: bool = False
    rates_positives: bool = True
    needs: tuple[str, ...] = ()
    cutoff: bool = False

    @property
    def key(self) -> str:
        """The name in lower case, as it stands in results."""
        return self.name.lower()

    @property
    def has_cutoff(self) -> bool:
        """Whether there is a value for each k of `topk`."""
        return self.kind in ("ranking", "catalogue") or (self.kind == "collected" and self.cutoff)

    @property
    def uses_lists(self) -> bool:
        """Whether it looks at ranked lists."""
        return self.has_cutoff or bool({"rec.topk", "rec.items"} & set(self.needs))


_metrics: dict[str, Metric] = {}


def register_metric(
    name: str,
    *,
    kind: Kind = "ranking",
    smaller: bool = False,
    needs_item_counts: bool = False,
    rates_positives: bool = True,
    replace: bool = False,
) -> Callable[[Function], Function]:
    """Register the decorated function as the metric `name`, usable by that name wherever metrics are named.

    | kind | the function takes | and returns |
    |---|---|---|
    | `ranking` | a `Ranking` (hits, number of positives, items) and k | a value for each user, averaged over users |
    | `pairs` | `OrderedPairs` (pairs in order, positives, negatives) | values and weights, one for each user |
    | `catalogue` | how often each item is recommended, and k | one value |
    | `labelled` | `LabelledRows` (scores, labels, users) | one value |

    A user for whom the value is nan is left out of the mean. Functions work on tensors of any device and read nothing
    from it.

    Args:
        name: What to call it; results have it in lower case.
        kind: What the function is given.
        smaller: Whether a smaller value is a better one.
        needs_item_counts: Whether `ranking.catalogue.item_counts` has to be there.
        rates_positives: Whether it can be told for some positives only, as a breakdown by items does.
        replace: Whether a metric of the same name makes way; without it that is an error, unless the same function is
            defined again, as in a notebook.

    Raises:
        ConfigError: The name is taken, or the kind is none.
    """
    if kind not in FUNCTIONS:
        raise ConfigError(f"metric {name!r}: kind={kind!r} is none of {list(FUNCTIONS)}")
    if not name or "@" in name:
        raise ConfigError(f"a metric cannot be called {name!r}: a name has letters, and no '@', which stands before k")

    def add(function: Function) -> Function:
        add_metric(Metric(name, kind, function, smaller, needs_item_counts, rates_positives), replace=replace)
        return function

    return add


def add_metric(metric: Metric, *, replace: bool = False) -> None:
    """Make a metric known by its name.

    Raises:
        ConfigError: The name is taken by another one, which is not to make way.
    """
    taken = metric.key in _metrics and not _same(_metrics[metric.key].function, metric.function)
    if taken and not replace:
        raise ConfigError(
            f"there is a metric {_metrics[metric.key].name!r} already; choose another name, or replace=True"
        )
    _metrics[metric.key] = metric


def _same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Return whether two functions are one that was defined twice."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def find_metric(name: str) -> Metric:
    """Return the metric called `name`, in any case.

    Raises:
        ConfigError: There is none; the message names the nearest.
    """
    found = _metrics.get(str(name).lower())
    if found is None:
        near = did_you_mean(str(name).lower(), _metrics)
        raise ConfigError(f"there is no metric {name!r}{near or f'; there are {metric_names()}'}")
    return found


def metric_names() -> list[str]:
    """Return the names of all metrics, sorted."""
    return sorted(metric.name for metric in _metrics.values())
