"""From tokens to ids: 0 is padding, and the others are numbered as they first appear."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from torch import Tensor

from treadle.errors import ConfigError, DataError, did_you_mean, some_of
from treadle.recsys.data.tables.columns import Array, Column, share_codes
from treadle.recsys.data.tables.filters import Tables
from treadle.recsys.optional import pyarrow

# The tokens of a field and their ids, either way


class Vocabulary:
    """Tokens by id; 0 is padding.

    Args:
        field: What the tokens are, for messages.
        arrow_tokens: The token of each id, as an Arrow array.
    """

    def __init__(self, field: str, arrow_tokens: Any) -> None:
        self.field = field
        self.arrow_tokens = arrow_tokens

    def __len__(self) -> int:
        return len(self.arrow_tokens)

    @cached_property
    def tokens(self) -> np.ndarray[Any, Any]:
        """The token of each id."""
        texts: np.ndarray[Any, Any] = self.arrow_tokens.to_numpy(zero_copy_only=False)
        return texts

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each token."""
        return {token: place for place, token in enumerate(self.tokens.tolist())}

    @cached_property
    def fingerprint(self) -> str:
        """What tells these tokens, in this order, from others."""
        return blake2b("\x1f".join(map(str, self.tokens.tolist())).encode(), digest_size=16).hexdigest()

    def id_of(self, token: Any) -> int:
        """Return the id of a token.

        Raises:
            DataError: There is no such token in the data.
        """
        found = self.ids.get(str(token))
        if found is None:
            near = did_you_mean(str(token), self.tokens[1:].tolist()) if len(self) < 100_000 else ""
            raise DataError(f"the data has no {self.field} {token!r}{near}")
        return found

    def ids_of(self, tokens: Any) -> np.ndarray[Any, Any]:
        """Return the id of each of several tokens.

        Raises:
            DataError: Some of them are not in the data.
        """
        arrow = pyarrow()
        asked = arrow.array([str(token) for token in tokens], arrow.string())
        found = arrow.compute.index_in(asked, self.arrow_tokens.cast(arrow.string()))
        if found.null_count:
            unknown = asked.filter(found.is_null()).to_pylist()
            raise DataError(f"the data has no {self.field} {some_of(list(map(repr, unknown)), 5)}")
        places: np.ndarray[Any, Any] = found.to_numpy(zero_copy_only=False).astype(np.int64)
        return places

    def tokens_of(self, ids: Any) -> Any:
        """Return the token of an id, or of each of several.

        Raises:
            DataError: An id is out of range.
        """
        places = ids.cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
        if places.size and (places.min() < 0 or places.max() >= len(self)):
            wrong = int(places.min()) if places.min() < 0 else int(places.max())
            raise DataError(f"{self.field} has no id {wrong}: ids go from 0 to {len(self) - 1}")
        return self.tokens[places.astype(np.int64)]


class PerField(Mapping[str, Any]):
    """What is known of every field with tokens; made when it is first asked for."""

    def __init__(self, vocabularies: Mapping[str, Vocabulary], what: str) -> None:
        self._vocabularies, self._what = vocabularies, what

    def __getitem__(self, field: str) -> Any:
        return getattr(self._vocabularies[field], self._what)

    def __iter__(self) -> Iterator[str]:
        return iter(self._vocabularies)

    def __len__(self) -> int:
        return len(self._vocabularies)


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
