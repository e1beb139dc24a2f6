"""Which rows stay: those with ids, without doubles, with the right values, of users and items that occur enough."""

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.recsys.data.tables.columns import Array, Column, Table, share_codes
from treadle.recsys.enums import FeatureType

# Intervals of numbers, as settings write them: "[3,inf)", or several with a semicolon between them


_ONE = re.compile(r"\s*([\[(])\s*([^,;\s]+)\s*,\s*([^,;\s]+)\s*([\])])\s*")


@dataclass(frozen=True)
class Interval:
    """All numbers from `low` to `high`.

    Attributes:
        low: The lower end.
        high: The upper end.
        with_low: Whether the lower end belongs to it.
        with_high: Whether the upper end belongs to it.
    """

    low: float
    high: float
    with_low: bool
    with_high: bool

    def contains(self, values: Any) -> Any:
        """Return whether each value is in the interval; nan never is."""
        above = values >= self.low if self.with_low else values > self.low
        below = values <= self.high if self.with_high else values < self.high
        return above & below


def parse_intervals(given: Any, where: str) -> list[Interval]:
    """Return the intervals that a setting stands for.

    >>> [one.high for one in parse_intervals("(0,1];[3,inf)", "a")]
    [1.0, inf]

    Args:
        given: The text, or two numbers where YAML has made a list of it.
        where: The setting, for messages.

    Raises:
        ConfigError: It is no interval, or an empty one.
    """
    text = _as_text(given)
    intervals = []
    for part in text.split(";"):
        found = _ONE.fullmatch(part)
        try:
            low, high = (float(found[2]), float(found[3])) if found else (math.nan, math.nan)
        except ValueError:
            found = None
        if found is None or math.isnan(low) or math.isnan(high):
            raise ConfigError(
                f"{where}={given!r}: {part.strip()!r} is no interval; write [3,5], [3,5), (3,5] or (3,5), inf for no "
                "end, and a semicolon between several"
            )
        interval = Interval(low, high, found[1] == "[", found[4] == "]")
        if low > high or (low == high and not (interval.with_low and interval.with_high)):
            raise ConfigError(f"{where}={given!r}: there is no number in {part.strip()!r}")
        intervals.append(interval)
    return intervals


def _as_text(given: Any) -> str:
    if isinstance(given, list):
        return f"[{','.join(map(str, given))}]"
    if isinstance(given, tuple):
        return f"({','.join(map(str, given))})"
    return str(given)


def within(values: np.ndarray[Any, Any], intervals: list[Interval]) -> np.ndarray[Any, Any]:
    """Return whether each value is in one of the intervals."""
    inside = np.zeros(values.shape, bool)
    for interval in intervals:
        inside |= interval.contains(values)
    return inside


logger = logging.getLogger(__name__)
SIDES = ("user", "item")


@dataclass(frozen=True)
class Filters:
    """What the settings say about which rows stay; the names are theirs."""

    rm_dup_inter: str | None = None
    val_interval: Mapping[str, Any] = field(default_factory=dict)
    filter_inter_by_user_or_item: bool = True
    user_inter_num_interval: Any = None
    item_inter_num_interval: Any = None


@dataclass
class Tables:
    """The tables of a data set while it is made.

    Attributes:
        inter: The interactions.
        user: What is known of users, if anything.
        item: What is known of items, if anything.
        others: Further tables by the suffix of their file.
        user_field: The name of the column with user ids; None if there are no users.
        item_field: The name of the column with item ids; None if there are no items.
        time_field: The name of the column with times.
    """

    inter: Table
    user: Table | None = None
    item: Table | None = None
    others: dict[str, Table] = field(default_factory=dict)
    user_field: str | None = None
    item_field: str | None = None
    time_field: str | None = None

    def by_suffix(self) -> dict[str, Table]:
        """Return every table that is there, by the suffix of its file."""
        named = {"inter": self.inter, "user": self.user, "item": self.item, **self.others}
        return {suffix: table for suffix, table in named.items() if table is not None}

    def all(self) -> list[Table]:
        """Return every table that is there."""
        return list(self.by_suffix().values())

    def replace(self, suffix: str, table: Table) -> None:
        """Put another table in the place of one that is there."""
        if suffix in self.others:
            self.others[suffix] = table
        else:
            setattr(self, suffix, table)


def filter_rows(tables: Tables, filters: Filters) -> None:
    """Leave out the rows that the settings do not want, in RecBole's order of filters.

    Raises:
        ConfigError: A filter cannot be meant.
        DataError: Nothing is left; the message says how many rows each filter left.
    """
    left = [f"{len(tables.inter)} interactions are read"]
    counts = [f"{side}_inter_num_interval={getattr(filters, f'{side}_inter_num_interval')!r}" for side in SIDES]
    steps: dict[str, Callable[[Tables, Filters], None]] = {
        "leaving out rows without ids": _drop_missing_ids,
        f"rm_dup_inter={filters.rm_dup_inter!r}": _drop_duplicates,
        f"val_interval={dict(filters.val_interval)}": _filter_values,
        f"filter_inter_by_user_or_item={filters.filter_inter_by_user_or_item}": _drop_unknown,
        " and ".join(counts): _drop_infrequent,
    }
    for name, step in steps.items():
        step(tables, filters)
        left.append(f"{len(tables.inter)} after {name}")
        for table in tables.all():
            if not len(table):
                raise DataError(f"no row of {table.name} is left: {', '.join(left)}")


def _drop_missing_ids(tables: Tables, filters: Filters) -> None:
    for field_name, kind in ((tables.user_field, "user"), (tables.item_field, "item")):
        if field_name is None:
            continue
        tables.inter = _with_ids(tables.inter, field_name)
        feature = getattr(tables, kind)
        if feature is not None:
            setattr(tables, kind, _with_ids(feature, field_name))


def _with_ids(table: Table, field_name: str) -> Table:
    there = table[field_name].values >= 0
    if not there.all():
        logger.warning("%d rows of %s have no %s and are left out", int((~there).sum()), table.name, field_name)
    return table.keep(there)


def _drop_duplicates(tables: Tables, filters: Filters) -> None:
    """Keep the first or last of several interactions of a user with an item; in the order of time if it is known."""
    keep = filters.rm_dup_inter
    if keep is None:
        return
    if keep not in ("first", "last"):
        raise ConfigError(f"rm_dup_inter={keep!r} must be 'first', 'last' or None")
    if tables.user_field is None or tables.item_field is None:
        raise ConfigError("rm_dup_inter needs USER_ID_FIELD and ITEM_ID_FIELD")
    if tables.time_field in tables.inter:
        times = tables.inter[str(tables.time_field)].values
        tables.inter = tables.inter.take(np.argsort(times, kind="stable"))
    else:
        logger.warning("rm_dup_inter=%r goes by the order of the file: there is no time field", keep)
    users, items = (tables.inter[name].values for name in (tables.user_field, tables.item_field))
    keys = users * (int(items.max(initial=0)) + 1) + items
    tables.inter = tables.inter.take(_distinct(keys, keep))


def _distinct(keys: Array, keep: str) -> Array:
    """Return the places of the first, or last, of each value, in their order."""
    seen = keys if keep == "first" else keys[::-1]
    places = np.unique(seen, return_index=True)[1]
    return np.sort(places if keep == "first" else len(keys) - 1 - places)


def _filter_values(tables: Tables, filters: Filters) -> None:
    for name, wanted in filters.val_interval.items():
        holders = {suffix: table for suffix, table in tables.by_suffix().items() if name in table}
        if not holders:
            fields = sorted({one for table in tables.all() for one in table.columns})
            near = did_you_mean(name, fields) or f"; loaded are {fields}"
            raise ConfigError(f"val_interval names the field {name!r}, which is not loaded{near}")
        for suffix, table in holders.items():
            tables.replace(suffix, table.keep(_wanted(table[name], name, wanted)))


def _wanted(column: Column, name: str, wanted: Any) -> Array:
    where = f"val_interval[{name!r}]"
    if column.kind is FeatureType.FLOAT:
        return within(column.values, parse_intervals(wanted, where))
    if column.kind is not FeatureType.TOKEN:
        raise ConfigError(f"{where}: {name!r} holds sequences; only rows with one value can be filtered by it")
    if not isinstance(wanted, (list, tuple, set)):
        raise ConfigError(f"{where}={wanted!r} must be a list: {name!r} holds tokens")
    texts = {str(token) for token in wanted}
    codes = [place for place, token in enumerate(column.tokens.to_pylist()) if token in texts]
    return np.isin(column.values, codes)


def _drop_unknown(tables: Tables, filters: Filters) -> None:
    """Keep the interactions of users and items that their own tables have."""
    if not filters.filter_inter_by_user_or_item:
        return
    stay = np.ones(len(tables.inter), bool)
    for name, feature in ((tables.user_field, tables.user), (tables.item_field, tables.item)):
        if name is not None and feature is not None:
            (codes, known), tokens = share_codes([tables.inter[name], feature[name]])
            there = np.zeros(len(tokens), bool)
            there[known] = True
            stay &= there[codes]
    tables.inter = tables.inter.keep(stay)


def _drop_infrequent(tables: Tables, filters: Filters) -> None:
    """Leave out users and items with too few or too many interactions, until all that are left have enough."""
    if tables.user_field is None or tables.item_field is None:
        return
    sides = [
        _Side(tables, "user", tables.user_field, filters.user_inter_num_interval),
        _Side(tables, "item", tables.item_field, filters.item_inter_num_interval),
    ]
    stay = np.ones(len(tables.inter), bool)
    while True:
        # Both sides look at the same counts, so that the outcome does not depend on which comes first.
        banned = [side.newly_banned(stay) for side in sides]
        if not any(ban.any() for ban in banned):
            break
        for side, ban in zip(sides, banned, strict=True):
            stay &= ~ban[side.codes]
    tables.inter = tables.inter.keep(stay)
    for side in sides:
        side.filter_features(tables)


class _Side:
    """The users, or the items, of the interactions, and which of them are out."""

    def __init__(self, tables: Tables, kind: str, name: str, interval: Any) -> None:
        self._kind = kind
        feature: Table | None = getattr(tables, kind)
        columns = [tables.inter[name]] + ([feature[name]] if feature is not None else [])
        codes, tokens = share_codes(columns)
        self.codes = codes[0]
        self._feature_codes = codes[1] if feature is not None else None
        setting = f"{kind}_inter_num_interval"
        self._intervals: list[Interval] | None = None if interval is None else parse_intervals(interval, setting)
        self._out = np.zeros(len(tokens), bool)
        self._listed = np.zeros(len(tokens), bool)
        for part in codes:
            self._listed[part] = True

    def newly_banned(self, stay: Array) -> Array:
        """Return who must go now, of those who have not gone yet."""
        if self._intervals is None:
            return np.zeros(len(self._out), bool)
        counts = np.bincount(self.codes[stay], minlength=len(self._out))
        wrong = ~within(counts, self._intervals) & self._listed & ~self._out
        if self._feature_codes is None:
            wrong &= counts > 0  # who has no row left is gone already
        self._out |= wrong
        return wrong

    def filter_features(self, tables: Tables) -> None:
        """Leave those who are out, out of their own table too."""
        feature: Table | None = getattr(tables, self._kind)
        if feature is not None and self._feature_codes is not None:
            setattr(tables, self._kind, feature.keep(~self._out[self._feature_codes]))


STEPS: Mapping[str, Callable[[Tables, Filters], None]] = {
    "_filter_nan_user_or_item": _drop_missing_ids,
    "_remove_duplication": _drop_duplicates,
    "_filter_by_field_value": _filter_values,
    "_filter_inter_by_user_or_item": _drop_unknown,
    "_filter_by_inter_num": _drop_infrequent,
}
"""The filters one by one, by RecBole's names for them."""
