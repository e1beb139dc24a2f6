"""From tables to features, in the order in which RecBole prepares a data set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.recsys.config import Config
from treadle.recsys.enums import FeatureSource, FeatureType
from treadle.recsys.interaction import Interaction, tensor_of_array
from treadle.recsys.tables.columns import Array, Column, Table
from treadle.recsys.tables.features import (
    embed_number,
    fields_to_scale,
    fill_missing,
    row_for_each_id,
    scale,
    set_label,
)
from treadle.recsys.tables.filtering import Filters, Tables, filter_rows
from treadle.recsys.tables.numbering import alias_groups, check_fields, number_tokens
from treadle.recsys.tables.sources import Sources, read_tables

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
        filtering(tables, filters_of(config))
    if narrow is not None:
        narrow(tables)
    if sources.split:
        _check_parts_have_ids(tables)
    tokens = number_tokens(tables, alias_groups(tables, aliases_of(config)))
    buckets = make_features(config, tables, tokens)
    return _finished(config, tables, tokens, buckets, sources)


def filters_of(config: Config) -> Filters:
    """Return what the settings say about which rows stay."""
    settings = {name: config[name] for name in FILTERS}
    settings["val_interval"] = settings["val_interval"] or {}
    if not isinstance(settings["val_interval"], Mapping):
        raise ConfigError(f"val_interval={settings['val_interval']!r} must map fields to intervals")
    return Filters(**settings)


def aliases_of(config: Config) -> dict[str, list[str]]:
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
            if name not in numbers:
                near = did_you_mean(name, numbers) or f"; fields of numbers are {sorted(numbers)}"
                raise ConfigError(f"{setting} names {name!r}, which is no loaded field of numbers{near}")
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
    named = {"inter": tables.inter, "user": tables.user, "item": tables.item, **tables.others}
    there = {suffix: table for suffix, table in named.items() if table is not None}
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
