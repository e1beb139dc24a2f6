"""From numbered tables to features: a row for each id, nothing missing, labels, scales and buckets."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.recsys.enums import FeatureType
from treadle.recsys.tables.columns import Array, Column, Table

logger = logging.getLogger(__name__)
METHODS = ("ED", "LD")


def row_for_each_id(table: Table, id_field: str, number: int) -> Table:
    """Return the table with the row of each id at its place; ids that it does not have get an empty row.

    Args:
        table: A table in which no id comes twice.
        id_field: Its ids.
        number: How many ids there are, padding included.
    """
    places = np.full(number, -1, np.int64)
    places[table[id_field].values] = np.arange(len(table))
    rows = Table(table.name, {name: column.take_or_missing(places) for name, column in table.columns.items()})
    rows.columns[id_field] = Column(FeatureType.TOKEN, np.arange(number))
    return rows


def fill_missing(table: Table) -> None:
    """Put the mean of a field where a number is missing, in place.

    Raises:
        DataError: A field has no number at all.
    """
    for name, column in table.columns.items():
        if column.kind.is_token or not np.isnan(column.values).any():
            continue
        there = ~np.isnan(column.values)
        if not there.any():
            raise DataError(f"field {name!r} of {table.name} has no value in any row; leave it out of load_col")
        column.values = np.where(there, column.values, column.values[there].mean())


def set_label(table: Table, threshold: Mapping[str, Any], label: str) -> None:
    """Give each interaction the label 1 if a field is at least so large, and 0 if not; the field is dropped.

    Raises:
        ConfigError: There is not exactly one field, or it is not loaded, or holds no numbers.
    """
    if len(threshold) != 1:
        raise ConfigError(f"threshold={dict(threshold)} must name one field, such as {{'rating': 4}}")
    ((name, value),) = threshold.items()
    if name not in table:
        near = did_you_mean(name, table.columns) or f"; loaded are {list(table.columns)}, see load_col"
        raise ConfigError(f"threshold names the field {name!r}, which is not loaded from {table.name}{near}")
    if table[name].kind is not FeatureType.FLOAT:
        raise ConfigError(f"threshold names the field {name!r}, which holds no numbers")
    table.columns[label] = Column(FeatureType.FLOAT, (table[name].values >= float(value)).astype(np.float64))
    if name != label:
        del table.columns[name]


def fields_to_scale(
    tables: Sequence[Table], fields: Sequence[str] | None, everything: bool | None, leave: set[str]
) -> list[str]:
    """Return which fields are brought to 0..1.

    Args:
        tables: The tables.
        fields: The setting `normalize_field`.
        everything: The setting `normalize_all`.
        leave: Fields that `everything` does not mean.

    Raises:
        ConfigError: Both settings are given, or a field is not loaded, or holds no numbers.
    """
    numbers = {name for table in tables for name, column in table.columns.items() if not column.kind.is_token}
    if not fields:
        return sorted(numbers - leave) if everything else []
    if everything:
        raise ConfigError("normalize_field and normalize_all=True cannot both be set; leave one out")
    for name in fields:
        if name not in numbers:
            near = did_you_mean(name, numbers) or f"; fields of numbers are {sorted(numbers)}"
            raise ConfigError(f"normalize_field names {name!r}, which is no loaded field of numbers{near}")
    return list(fields)


def scale(column: Column, name: str) -> None:
    """Bring the numbers of a column to 0..1, in place; numbers that are all the same become 1.

    Raises:
        DataError: A number is infinite.
    """
    low, high = (column.values.min(), column.values.max()) if len(column.values) else (0, 0)
    if low == high:
        logger.warning("all values of %r are the same; scaled, they are 1", name)
        column.values = np.ones(column.values.shape)
        return
    if not np.isfinite([low, high]).all():
        raise DataError(f"the field {name!r} has infinite values, which cannot be scaled to 0..1; see normalize_field")
    # Whole numbers are subtracted as such: no two times become one by rounding.
    column.values = (column.values - low) / float(high - low)


def embed_number(column: Column, name: str, buckets: Mapping[str, Any] | None) -> int:
    """Turn a field of numbers into pairs (value, bucket) for models that embed it, in place.

    Without buckets the pair is the number and 1; with them it is 1 and the number of the bucket.

    Args:
        column: The field.
        name: Its name.
        buckets: Its entry in `discretization`, if it has one.

    Returns:
        How many buckets there are, 0 included.

    Raises:
        ConfigError: The entry cannot be meant.
    """
    ones = np.ones(len(column.values))
    if buckets is None:
        column.values = np.stack([column.values, ones], axis=-1)
        return 2
    places = _bucket_places(column.values.astype(np.float64), name, buckets)
    column.values = np.stack([ones, places], axis=-1)
    return int(places.max(initial=0)) + 1


def _bucket_places(values: Array, name: str, buckets: Mapping[str, Any]) -> Array:
    method = buckets.get("method")
    if method not in METHODS:
        raise ConfigError(f"discretization[{name!r}] has the method {method!r}; there are {list(METHODS)}")
    if method == "LD":
        large = values > 2
        logs = np.floor(np.log(np.where(large, values, 1.0)) ** 2 + 1)
        places: Array = np.unique(np.where(large, logs, values), return_inverse=True)[1]
        return places.astype(np.float64)
    number = buckets.get("bucket")
    if type(number) is not int or number < 1:
        raise ConfigError(f"discretization[{name!r}] needs the number of buckets: {{'method': 'ED', 'bucket': 10}}")
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf) + 1e-9
    if low == high:  # the values are all the same, and too large for the difference to show
        return np.full(len(values), float(number))
    places = np.floor((values - low) * number / (high - low) + 1)
    return np.minimum(places, number)
