"""What results say as a whole: how much each decision matters, and how much a front covers."""

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.errors import ConfigError
from treadle.search.assignment import key_of
from treadle.search.errors import SearchError

BINS = 6
"""Into how many parts of equal size the numbers of a decision are divided."""


def importance(results: Mapping[str, Any], objective: str | None = None) -> dict[str, float]:
    """Return how much each decision matters, the largest first; together they are 1, or all 0.

    It is the share of the variance of the objective that the decision explains by itself, as in a functional analysis
    of variance, corrected for what a decision with as many values explains by chance.

    >>> trials = [{"parameters": {"x": x, "y": y}, "values": {"default": 2.0 * x}} for x in (0, 1) for y in (0, 1)] * 2
    >>> importance({"objectives": {"default": "maximize"}, "trials": trials})
    {'x': 1.0, 'y': 0.0}

    Args:
        results: What `Search.results()` returns.
        objective: Of which objective; by default the first.

    Raises:
        SearchError: There are fewer than four complete trials.
        ConfigError: There is no such objective.
    """
    name = next(iter(results["objectives"])) if objective is None else objective
    if name not in results["objectives"]:
        raise ConfigError(f"importance of {name!r}: the search has the objectives {list(results['objectives'])}")
    complete = [one for one in results["trials"] if one["values"] is not None and "replayed_from" not in one]
    if len(complete) < 4:
        raise SearchError(f"importance needs four complete trials or more, and there are {len(complete)}")
    values = [float(one["values"][name]) for one in complete]
    labels = dict.fromkeys(label for one in complete for label in one["parameters"])
    shares = {}
    for label in labels:
        own = [place for place, one in enumerate(complete) if label in one["parameters"]]
        decided = [complete[place]["parameters"][label] for place in own]
        shares[label] = _share(decided, [values[place] for place in own]) * len(own) / len(complete)
    total = sum(shares.values())
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return {label: round(share / total, 6) if total else 0.0 for label, share in ranked}


def _share(decided: Sequence[Any], values: Sequence[float]) -> float:
    """Return which part of the variance the groups with the same decision explain: omega squared, at least 0."""
    groups: dict[str, list[float]] = {}
    for group, value in zip(_groups(decided), values, strict=True):
        groups.setdefault(group, []).append(value)
    count, mean = len(values), sum(values) / len(values)
    total = sum((value - mean) ** 2 for value in values)
    inside = sum(sum((value - sum(own) / len(own)) ** 2 for value in own) for own in groups.values())
    if total <= 0 or count <= len(groups):
        return 0.0
    noise = inside / (count - len(groups))
    return max(0.0, (total - inside - (len(groups) - 1) * noise) / (total + noise))


def _groups(decided: Sequence[Any]) -> list[str]:
    """Return the group of each decision: its value, or the part of all numbers that it lies in."""
    numbers = sorted(one for one in decided if isinstance(one, (int, float)) and not isinstance(one, bool))
    if len(set(numbers)) <= BINS:
        return [key_of(one) for one in decided]
    edges = [numbers[len(numbers) * part // BINS] for part in range(1, BINS)]
    return [
        str(sum(one >= edge for edge in edges))
        if isinstance(one, (int, float)) and not isinstance(one, bool)
        else key_of(one)
        for one in decided
    ]


def hypervolume(results: Mapping[str, Any], reference: Mapping[str, float]) -> float:
    """Return how much of the space of objectives the front covers, up to a point that is worse than all of it.

    >>> results = {"objectives": {"a": "maximize", "b": "minimize"}, "trials": [
    ...     {"values": {"a": 2.0, "b": 1.0}}, {"values": {"a": 1.0, "b": 0.0}}, {"values": None}]}
    >>> hypervolume(results, {"a": 0.0, "b": 2.0})
    3.0

    Args:
        results: What `Search.results()` returns.
        reference: A value of each objective; trials that are not better in all of them cover nothing.

    Raises:
        ConfigError: An objective is missing in the reference.
    """
    missing = [name for name in results["objectives"] if name not in reference]
    if missing:
        raise ConfigError(f"hypervolume: the reference has no {missing[0]!r}, which is an objective of the search")
    signs = {name: -1.0 if word.startswith("max") else 1.0 for name, word in results["objectives"].items()}
    worst = tuple(sign * reference[name] for name, sign in signs.items())
    points = [
        tuple(sign * one["values"][name] for name, sign in signs.items())
        for one in results["trials"]
        if one["values"] is not None and one.get("feasible", True)
    ]
    inside = [one for one in points if all(value < limit for value, limit in zip(one, worst, strict=True))]
    return _covered(inside, worst)


def _covered(points: Sequence[tuple[float, ...]], worst: tuple[float, ...]) -> float:
    """Return the volume between points and a corner, slice by slice along the last objective."""
    if not points:
        return 0.0
    if len(worst) == 1:
        return worst[0] - min(one[0] for one in points)
    heights = sorted({one[-1] for one in points})
    volume = 0.0
    for height, above in zip(heights, [*heights[1:], worst[-1]], strict=True):
        volume += (above - height) * _covered([one[:-1] for one in points if one[-1] <= height], worst[:-1])
    return volume
