"""What an evaluation tells: rounded for readers, exact for decisions, and whether it is the best so far."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from treadle.errors import ConfigError, UnknownMetricError, did_you_mean
from treadle.runs.html_table import html_table


class Metrics(OrderedDict[str, float]):
    """The metrics of an evaluation by name, rounded as `metric_decimal_place` says.

    Attributes:
        exact: The same, not rounded.
        groups: The metrics by division and group, such as `groups["activity"]["0-4"]["recall@10"]`, not rounded, where
            the settings name `user_groups` or `item_groups`.
        group_users: How many users each group has.
    """

    exact: dict[str, float]
    groups: Mapping[str, Mapping[str, Mapping[str, float]]] = MappingProxyType({})
    group_users: Mapping[str, Mapping[str, int]] = MappingProxyType({})

    @classmethod
    def of(cls, exact: Mapping[str, float], decimals: int) -> "Metrics":
        """Return metrics, rounded."""
        made = cls((name, round(value, decimals)) for name, value in exact.items())
        made.exact = dict(exact)
        return made

    def _repr_html_(self) -> str:
        """Show the metrics as a table in a notebook."""
        return html_table(["metric", "value"], self.items())


def calculate_valid_score(valid_result: Mapping[str, float], valid_metric: str | None = None) -> float:
    """Return the metric that decides, as exactly as it is known.

    Args:
        valid_result: What an evaluation returned.
        valid_metric: The name of the metric; by default `recall@10`.

    Raises:
        ConfigError: What was returned is no dict.
        UnknownMetricError: It was not calculated.
    """
    name = (valid_metric or "recall@10").lower()
    values = getattr(valid_result, "exact", valid_result)
    if not isinstance(values, Mapping):
        raise ConfigError(f"an evaluation returned {values!r}; evaluate must return its metrics by name, as a dict")
    if name not in values:
        near = did_you_mean(name, values) or f"; there are {list(values)}"
        raise UnknownMetricError(f"valid_metric={name!r} is not among what the evaluation returned{near}")
    return float(values[name])


def check_validation(found: Any, where: str) -> tuple[float, Mapping[str, Any]]:
    """Return the score and the metrics of an evaluation, which a method of the user's may have made.

    Args:
        found: What the method returned.
        where: Its name, for messages.

    Raises:
        ConfigError: It is no pair of a number and a dict.
    """
    wanted = "return the score that decides and all metrics by name, such as (0.12, {'ndcg@10': 0.12})"
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise ConfigError(f"{where} returned {found!r}; {wanted}")
    score, result = found
    try:
        number = float(score)
    except (TypeError, ValueError):
        raise ConfigError(f"{where} returned {score!r} as its score, which is no number; {wanted}") from None
    if not isinstance(result, Mapping):
        raise ConfigError(f"{where} returned {result!r} as its metrics, which is no dict; {wanted}")
    return number, result


class StoppingDecision(NamedTuple):
    """What a new score means: the best score, evaluations since it, whether to stop, and whether it is the new best."""

    best: float
    cur_step: int
    stop_flag: bool
    update_flag: bool


def early_stopping(value: float, best: float, cur_step: int, max_step: int, bigger: bool = True) -> StoppingDecision:
    """Judge a new score: a run stops once more than `max_step` scores in a row were no better than the best.

    Only a score that is really better counts as better: equal ones do not, nor does nan.

    >>> early_stopping(0.5, 0.4, 3, 10)
    StoppingDecision(best=0.5, cur_step=0, stop_flag=False, update_flag=True)
    >>> early_stopping(0.4, 0.4, 10, 10)
    StoppingDecision(best=0.4, cur_step=11, stop_flag=True, update_flag=False)

    Args:
        value: The new score.
        best: The best so far.
        cur_step: How many scores there were since the best.
        max_step: How many there may be.
        bigger: Whether a higher score is better.
    """
    better = value > best if bigger else value < best
    if better and not math.isnan(value):
        return StoppingDecision(value, 0, False, True)
    return StoppingDecision(best, cur_step + 1, cur_step + 1 > max_step, False)


def dict2str(result_dict: Mapping[str, Any]) -> str:
    """Return metrics in one line.

    >>> dict2str({"recall@10": 0.25, "mrr@10": 0.5})
    'recall@10 : 0.25    mrr@10 : 0.5'
    """
    return "    ".join(f"{metric} : {value}" for metric, value in result_dict.items())


def group_tables(metrics: Mapping[str, float]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return, for each division that metrics were broken down by, the heads and the rows of a table of its groups."""
    found = {}
    sizes = getattr(metrics, "group_users", {})
    for division, groups in getattr(metrics, "groups", {}).items():
        names = list(next(iter(groups.values()), {}))
        rows = [
            [label, f"{sizes[division][label]:,}", *(f"{values[name]:.4f}" for name in names)]
            for label, values in groups.items()
        ]
        found[division] = ([division, "users", *names], rows)
    return found


def groups2str(metrics: Mapping[str, float]) -> list[str]:
    """Return the metrics of each group in one line."""
    return [
        f"{heads[0]} {label} ({users} users): {dict2str(dict(zip(heads[2:], values, strict=True)))}"
        for heads, rows in group_tables(metrics).values()
        for label, users, *values in rows
    ]


def encoded_metrics(metrics: Any) -> Any:
    """Return metrics as plain data."""
    if not isinstance(metrics, Metrics):
        return None if metrics is None else dict(metrics)
    groups = {"groups": metrics.groups, "group_users": metrics.group_users} if metrics.groups else {}
    return {"rounded": dict(metrics), "exact": metrics.exact, **groups}


def decoded_metrics(state: Any) -> Any:
    """Return what `encoded_metrics` was given."""
    if not isinstance(state, dict) or set(state) - {"groups", "group_users"} != {"rounded", "exact"}:
        return state
    made = Metrics(state["rounded"])
    made.exact = dict(state["exact"])
    made.groups, made.group_users = state.get("groups", {}), state.get("group_users", {})
    return made
