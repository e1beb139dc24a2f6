"""From tokens to ids: 0 is padding, and the others are numbered as they first appear."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.recsys.optional import pyarrow
from treadle.recsys.tables.columns import Array, Column, share_codes
from treadle.recsys.tables.filtering import Tables

PADDING = "[PAD]"


def check_fields(tables: Tables) -> None:
    """Make sure that no field but an id is in two tables.

    Raises:
        DataError: One is.
    """
    shared = {tables.user_field, tables.item_field}
    homes: dict[str, str] = {}
    for table in tables.all():
        for name in table.columns:
            if name in homes and name not in shared:
                raise DataError(f"the field {name!r} is in {homes[name]} and in {table.name}; load it from one of them")
            homes.setdefault(name, table.name)


def alias_groups(tables: Tables, aliases: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return which fields of tokens are numbered together: ids and what the settings call another name for them.

    Args:
        tables: The tables.
        aliases: For each setting `alias_of_...` its fields, the id itself first.

    Raises:
        ConfigError: A field is in two groups, is not loaded, or holds no tokens.
    """
    kinds = {name: column.kind for table in tables.all() for name, column in table.columns.items()}
    taken: dict[str, str] = {}
    groups = []
    for setting, fields in aliases.items():
        group = list(dict.fromkeys(fields))
        for name in group:
            if name in taken:
                raise ConfigError(f"{setting} and {taken[name]} both have the field {name!r}; it can be in one only")
            if name not in kinds:
                near = did_you_mean(name, kinds) or f"; loaded are {sorted(kinds)}"
                raise ConfigError(f"{setting} names the field {name!r}, which is not loaded{near}")
            if not kinds[name].is_token:
                raise ConfigError(f"{setting} names the field {name!r}, which holds numbers and not tokens")
            taken[name] = setting
        if group:
            groups.append(group)
    rest = [name for name, kind in kinds.items() if kind.is_token and name not in taken]
    return [*groups, *([name] for name in rest)]


def number_tokens(tables: Tables, groups: list[list[str]]) -> dict[str, Any]:
    """Replace the codes of every field of tokens by ids, in place.

    Returns:
        For each field the token of each id, as an Arrow array.
    """
    tokens: dict[str, Any] = {}
    for group in groups:
        columns = [table[name] for name in group for table in tables.all() if name in table]
        numbered = _number(columns)
        tokens |= dict.fromkeys(group, numbered)
    return tokens


def _number(columns: list[Column]) -> Any:
    arrow = pyarrow()
    codes, texts = share_codes(columns)
    order = first_appearances(np.concatenate(codes), len(texts))
    # One more entry, so that -1, a missing token, becomes 0.
    ids = np.zeros(len(texts) + 1, np.int64)
    ids[order] = np.arange(1, len(order) + 1)
    for column, own in zip(columns, codes, strict=True):
        column.values, column.tokens = ids[own], None
    kept = texts.take(arrow.array(order))
    return arrow.concat_arrays([arrow.array([PADDING], texts.type), kept])


def first_appearances(codes: Array, number: int) -> Array:
    """Return the codes that occur, in the order in which they first do; -1 is none.

    >>> first_appearances(np.array([4, -1, 2, 4, 0]), 5).tolist()
    [4, 2, 0]
    """
    codes = codes[codes >= 0]
    first = np.full(number, len(codes), np.int64)
    # Of several values for one place the last is kept: written backwards, that is the first.
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    found = np.flatnonzero(first < len(codes))
    return found[np.argsort(first[found], kind="stable")]
