"""From tables to features, in the order in which RecBole prepares a data set."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.interaction import Interaction, tensor_of_array
from treadle.recsys.data.tables.columns import Array, Column, Table
from treadle.recsys.data.tables.filters import Filters, Tables, filter_rows
from treadle.recsys.data.tables.id_map import alias_groups, check_fields, number_tokens
from treadle.recsys.data.tables.sources import Sources, read_tables
from treadle.recsys.enums import FeatureSource, FeatureType

# From numbered tables to features: a row for each id, nothing missing, labels, scales and buckets


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
        _check_number("normalize_field", name, numbers)
    return list(fields)


def _check_number(setting: str, name: str, numbers: Collection[str]) -> None:
    if name not in numbers:
        near = did_you_mean(name, numbers) or f"; fields of numbers are {sorted(numbers)}"
        raise ConfigError(f"{setting} names {name!r}, which is no loaded field of numbers{near}")


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


FILTERS = tuple(Filters.__dataclass_fields__)


@dataclass
class Prepared:
    """A data set that is ready to be split.

    Attributes:
        features: The columns of each table, by its suffix.
        types: What each field holds.
        sources: Which table each field is from.
        lengths: The most values of each field in one row.
        buckets: How many buckets each field of numbers has.
        tokens: For each field of tokens the token of each id, as an Arrow array.
        weights: Pretrained vectors by the id field they belong to.
        parts: How many rows each part has, where the data came split.
    """

    features: dict[str, Interaction]
    types: dict[str, FeatureType]
    sources: dict[str, FeatureSource | str]
    lengths: dict[str, int]
    buckets: dict[str, int]
    tokens: dict[str, Any]
    weights: dict[str, Array] = field(default_factory=dict)
    parts: list[int] | None = None


def prepare(
    config: Config,
    sources: Sources,
    narrow: Callable[[Tables], None] | None = None,
    filtering: Callable[[Tables, Filters], None] = filter_rows,
) -> Prepared:
    """Read, filter, number, join, fill, label, scale and embed the tables of a data set.

    Args:
        config: The settings.
        sources: Where the tables are.
        narrow: Leaves out further rows, in place, after the filters of the settings, which count all rows.
        filtering: Leaves out rows, in place, as the settings say.

    Raises:
        ConfigError: A setting cannot be meant for these tables.
        DataError: The tables cannot be used.
    """
    tables = read_tables(config, sources)
    check_fields(tables)
    if not sources.split:
        filtering(tables, read_filters(config))
    if narrow is not None:
        narrow(tables)
    if sources.split:
        _check_parts_have_ids(tables)
    tokens = number_tokens(tables, alias_groups(tables, read_aliases(config)))
    buckets = make_features(config, tables, tokens)
    return _finished(config, tables, tokens, buckets, sources)


def read_filters(config: Config) -> Filters:
    """Return what the settings say about which rows stay."""
    settings = {name: config[name] for name in FILTERS}
    settings["val_interval"] = settings["val_interval"] or {}
    if not isinstance(settings["val_interval"], Mapping):
        raise ConfigError(f"val_interval={settings['val_interval']!r} must map fields to intervals")
    return Filters(**settings)


def read_aliases(config: Config) -> dict[str, list[str]]:
    """Return which fields the settings call other names for user and item ids."""
    groups = {"alias_of_user_id": "USER_ID_FIELD", "alias_of_item_id": "ITEM_ID_FIELD"}
    found = {}
    for setting, main in groups.items():
        if config[main] is not None:
            found[setting] = [config[main], *(config[setting] or ())]
    return found


def _check_parts_have_ids(tables: Tables) -> None:
    if not len(tables.inter):
        raise DataError(f"{tables.inter.name} has no rows")
    for name in (tables.user_field, tables.item_field):
        if name is not None and (tables.inter[name].values < 0).any():
            raise DataError(
                f"{tables.inter.name} has rows without a {name}; data that is split already is not filtered"
            )


def make_features(config: Config, tables: Tables, tokens: Mapping[str, Any]) -> dict[str, int]:
    """Join, fill, label, scale and embed, in place; return how many buckets each field of numbers has."""
    for kind, name in (("user", tables.user_field), ("item", tables.item_field)):
        table: Table | None = getattr(tables, kind)
        if table is not None and name is not None:
            setattr(tables, kind, row_for_each_id(table, name, len(tokens[name])))
    for table in tables.all():
        fill_missing(table)
    label = config["LABEL_FIELD"]
    if config["threshold"] is not None:
        set_label(tables.inter, config["threshold"], label)
    made = {label} if config["threshold"] is not None else set()
    for name in fields_to_scale(tables.all(), config["normalize_field"], config["normalize_all"], made):
        for table in tables.all():
            if name in table:
                scale(table[name], name)
    return _embed_numbers(config, tables)


def _embed_numbers(config: Config, tables: Tables) -> dict[str, int]:
    numbers = {name: column for table in tables.all() for name, column in table.columns.items() if _is_number(column)}
    embedded, settings = config["numerical_features"] or [], config["discretization"] or {}
    for setting, names in (("numerical_features", embedded), ("discretization", settings)):
        for name in names:
            _check_number(setting, name, numbers)
            if name not in embedded:
                raise ConfigError(f"discretization names {name!r}, which is not in numerical_features; add it there")
    return {
        name: embed_number(column, name, settings.get(name)) if name in embedded else 2
        for name, column in numbers.items()
    }


def _is_number(column: Column) -> bool:
    return not column.kind.is_token


def _finished(
    config: Config, tables: Tables, tokens: dict[str, Any], buckets: dict[str, int], sources: Sources
) -> Prepared:
    there = tables.by_suffix()
    prepared = Prepared({}, {}, {}, {}, buckets, tokens, parts=list(sources.sizes) if sources.split else None)
    prepared.weights = _pretrained(config, there, tokens)
    for suffix, table in there.items():
        prepared.features[suffix] = _tensors(table, config["TIME_FIELD"])
        for name, column in table.columns.items():
            prepared.types[name] = column.kind
            prepared.sources[name] = _source(suffix)
            prepared.lengths[name] = int(column.lengths.max(initial=0)) if column.offsets is not None else 1
    for own, source in ((tables.user_field, FeatureSource.USER_ID), (tables.item_field, FeatureSource.ITEM_ID)):
        if own is not None:
            prepared.sources[own] = source
    return prepared


def _source(suffix: str) -> FeatureSource | str:
    known = {source.value: source for source in FeatureSource}
    return known.get(suffix, suffix)


def _tensors(table: Table, time_field: str | None) -> Interaction:
    columns = {name: _tensor(column, exact=name == time_field) for name, column in table.columns.items()}
    return Interaction.of_columns(columns, len(table))


def _tensor(column: Column, *, exact: bool) -> Tensor:
    """Return a column as a tensor: ids in 64 bit, numbers in 32 bit, and times in 64 bit too."""
    if column.kind.is_sequence:
        return torch.from_numpy(column.padded(np.int64 if column.kind.is_token else np.float32))
    if column.kind.is_token:
        return tensor_of_array(np.ascontiguousarray(column.values, np.int64))
    values = column.values if exact else column.values.astype(np.float32)
    return tensor_of_array(np.ascontiguousarray(values))


def _pretrained(config: Config, tables: Mapping[str, Table], tokens: Mapping[str, Any]) -> dict[str, Array]:
    """Return the vectors of `preload_weight`: a row for each id, zeros for ids without one."""
    weights = {}
    for id_field, value_field in (config["preload_weight"] or {}).items():
        table = next((one for one in tables.values() if id_field in one and value_field in one), None)
        if table is None:
            raise ConfigError(f"preload_weight: no loaded table has both {id_field!r} and {value_field!r}")
        ids, values = table[id_field], table[value_field]
        if ids.kind is not FeatureType.TOKEN or values.kind.is_token:
            raise ConfigError(f"preload_weight: {id_field!r} must hold one token a row, and {value_field!r} numbers")
        rows = values.padded(np.float64) if values.offsets is not None else values.values.astype(np.float64)
        matrix = np.zeros((len(tokens[id_field]), *rows.shape[1:]))
        matrix[ids.values] = rows
        weights[id_field] = matrix
    return weights
