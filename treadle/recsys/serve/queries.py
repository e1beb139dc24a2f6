"""What a recommender is asked: for whom, by which history, without which items, among which."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.tables.id_map import Vocabulary
from treadle.recsys.enums import FeatureType

MOST_HISTORY = 100_000
"""The longest history that is looked at; a longer one is a mistake, or an attack."""
MASKS_KEPT = 16
"""How many filters are remembered with the items that pass them."""
Token = str | int


@dataclass(frozen=True)
class Query:
    """One list that is asked for.

    Attributes:
        user: The user, by the token that the data has; None for somebody whom only the history tells of.
        history: What the user did, oldest first, by tokens of items; None for what the data has.
        exclude: Items that are not to be in the list.
        filter: What items have to be: those of a list, or those with some values, by the names of the fields.
        exclude_seen: Whether items of the history, and those that the data has of the user, are left out; None for
            what the settings say.
        explain: How many items of the history are named with each item of the list, those most like it.
        unknown: "refuse" unknown items of a history, or "skip" them.
    """

    user: Token | None = None
    history: Sequence[Token] | None = None
    exclude: Sequence[Token] = ()
    filter: Any = None
    exclude_seen: bool | None = None
    explain: int = 0
    unknown: str = "refuse"


def queries_of(users: Any, history: Any, **shared: Any) -> list[Query]:
    """Return the queries that the arguments of `recommend` stand for.

    Raises:
        ConfigError: The arguments do not go together, or are of other types.
    """
    if users is None and history is None:
        raise ConfigError("recommend needs users=, by their tokens, or history=, the items of somebody new")
    tokens = None if users is None else tokens_of(users)
    histories = None if history is None else _histories(history, tokens)
    names: list[str | None] = [None] * len(histories or ()) if tokens is None else [*tokens]
    given = [None] * len(names) if histories is None else histories
    exclude = () if shared.get("exclude") is None else tuple(tokens_of(shared["exclude"], "exclude"))
    return [Query(user, past, **{**shared, "exclude": exclude}) for user, past in zip(names, given, strict=True)]


def _histories(history: Any, tokens: list[str] | None) -> list[Any]:
    """Return a history for each user: one list is that of one user, a list of lists or a dict those of several."""
    if isinstance(history, Mapping):
        if tokens is None:
            raise ConfigError("history is a dict by user, and users= is missing; name the users, or give a list")
        unknown = [one for one in history if str(one) not in tokens]
        if unknown:
            raise ConfigError(f"history has {unknown[0]!r}, who is not among users={tokens[:5]}")
        by_token = {str(user): past for user, past in history.items()}
        return [by_token.get(token) for token in tokens]
    if isinstance(history, (str, bytes)) or not isinstance(history, Iterable):
        raise ConfigError(f"history={history!r} is a {type(history).__name__}; give a list of items, oldest first")
    listed = list(history)
    if not any(_is_list(one) or one is None for one in listed):
        listed = [listed]
    elif not all(_is_list(one) or one is None for one in listed):
        raise ConfigError("history mixes items and lists of items; give one list, or one for each user")
    if tokens is not None and len(listed) != len(tokens):
        raise ConfigError(f"there are {len(tokens)} users and {len(listed)} histories; give one for each user")
    return listed


def _is_list(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes))


def tokens_of(given: Any, what: str = "users") -> list[str]:
    """Return one token, or several, as a list of texts.

    Raises:
        ConfigError: Something else was given.
    """
    if isinstance(given, (str, int, np.integer)) and not isinstance(given, bool):
        return [str(given)]
    if not isinstance(given, Iterable) or isinstance(given, (bytes, Mapping)):
        raise ConfigError(f"{what}={given!r}: {given!r} is no token, and no list of tokens")
    return [_token(one, what) for one in given]


def _token(one: Any, what: str) -> str:
    if isinstance(one, bool) or not isinstance(one, (str, int, np.integer)):
        raise ConfigError(f"{what} has {one!r}, a {type(one).__name__}; tokens are texts or whole numbers")
    return str(one)


class Catalogue:
    """The items that can be asked for, by token, and what is known of them.

    Args:
        items: The tokens of items.
        features: A row for each item, or None.
        types: What each field of the features holds.
        vocabularies: The tokens of the fields that have some.
        changed: Fields whose numbers are not those of the data any more, each with what was done to them.
        device: Where masks are wanted.

    Attributes:
        features: The column of each field.
        types, changed: As given.
    """

    def __init__(
        self,
        items: Vocabulary,
        features: Interaction | None,
        types: Mapping[str, FeatureType],
        vocabularies: Mapping[str, Vocabulary],
        changed: Mapping[str, str],
        device: torch.device,
    ) -> None:
        self.items, self.device = items, device
        self.features = {} if features is None else dict(features.interaction)
        self.types, self._vocabularies, self.changed = types, vocabularies, changed
        self._masks: dict[str, Tensor] = {}

    def ids(self, tokens: Any, what: str) -> Tensor:
        """Return the ids of items.

        Raises:
            DataError: There is no such item.
        """
        texts = tokens_of(tokens, what)
        known = self.items.ids
        unknown = [one for one in texts if known.get(one, 0) == 0]
        if unknown:
            raise DataError(f"{what}: the data has no {self.items.field} {self._named(unknown)}")
        return torch.tensor([known[one] for one in texts], dtype=torch.int64, device=self.device)

    def tokens_of(self, field: str) -> list[str]:
        """Return the tokens of a field by id; none for one of numbers, or for that of the items themselves."""
        if not self.types[field].is_token or field == self.items.field:
            return []
        return [str(one) for one in self._vocabularies[field].tokens.tolist()]

    def known_ids(self, tokens: Any, what: str) -> Tensor:
        """Return the ids of those of some items that the data has."""
        ids = (self.items.ids.get(one, 0) for one in tokens_of(tokens, what))
        return torch.tensor([one for one in ids if one], dtype=torch.int64, device=self.device)

    def _named(self, unknown: list[str]) -> str:
        if len(unknown) > 1:
            more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
            return f"{', '.join(map(repr, unknown[:5]))}{more}"
        near = did_you_mean(unknown[0], self.items.tokens[1:].tolist()) if len(self.items) < 100_000 else ""
        return f"{unknown[0]!r}{near}"

    def mask(self, filter: Any) -> Tensor | None:
        """Return which items pass a filter, `[n_items]`; None where all do.

        Args:
            filter: Items, by their tokens; or, by the names of fields of items, a value, several values of which an
                item has one, or for numbers a range: `{"min": 5, "max": 20}`, one of them or both.

        Raises:
            ConfigError: The filter is something else, or names what items have not.
            DataError: A value is none that the data has.
        """
        if filter is None:
            return None
        key = _key(filter)
        if key not in self._masks:
            while len(self._masks) >= MASKS_KEPT:
                self._masks.pop(next(iter(self._masks)))
            self._masks[key] = self._made(filter)
        return self._masks[key]

    def _made(self, filter: Any) -> Tensor:
        if isinstance(filter, Mapping):
            mask = torch.ones(len(self.items), dtype=torch.bool, device=self.device)
            for field, wanted in filter.items():
                mask &= self._passes(field, wanted)
            return mask
        mask = torch.zeros(len(self.items), dtype=torch.bool, device=self.device)
        mask[self.ids(filter, "filter")] = True
        return mask

    def _passes(self, field: Any, wanted: Any) -> Tensor:
        if field not in self.features or field == self.items.field:
            there = [name for name in self.features if name != self.items.field]
            near = did_you_mean(str(field), there) or f"; items have {there or 'no fields'}"
            raise ConfigError(f"filter names {field!r}, which is no field of items{near}")
        column = self.features[field].to(self.device)
        if self.types[field].is_token:
            ids = torch.from_numpy(self._vocabularies[field].ids_of(tokens_of(wanted, f"filter[{field!r}]")))
            found = torch.isin(column, ids.to(self.device))
            return found.flatten(1).any(dim=1) if found.dim() > 1 else found
        return self._in_range(str(field), column, wanted)

    def _in_range(self, field: str, column: Tensor, wanted: Any) -> Tensor:
        if field in self.changed:
            raise ConfigError(
                f"filter[{field!r}]: the data has this field {self.changed[field]}, so that it has no range"
            )
        if not isinstance(wanted, Mapping) or not wanted or not set(wanted) <= {"min", "max"}:
            raise ConfigError(f"filter[{field!r}]={wanted!r}: a field of numbers takes {{'min': ..., 'max': ...}}")
        for value in wanted.values():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ConfigError(f"filter[{field!r}] has {value!r}, which is no number")
        if column.dim() > 1:
            column = column[:, 0]
        inside: Tensor = (column >= wanted.get("min", -torch.inf)) & (column <= wanted.get("max", torch.inf))
        return inside


def _key(filter: Any) -> str:
    try:
        return json.dumps(filter, sort_keys=True)
    except (TypeError, ValueError):
        plain = dict(filter) if isinstance(filter, Mapping) else list(filter) if _is_list(filter) else filter
        return repr(plain)


@dataclass(frozen=True)
class Asked:
    """A query whose tokens are known to be right.

    Attributes:
        name: What its list is called.
        user: The id of the user, 0 for those that the data does not have.
        history: The ids of the items; None for what the data has of the user.
        hidden: The ids of items that are to be left out.
        allowed: Which items may be in the list, `[n_items]`; None for all.
        hides: Whether what the user has is left out.
        explain: How many items of the history are named with each item.
    """

    name: str
    user: int
    history: Tensor | None
    hidden: Tensor
    allowed: Tensor | None
    hides: bool
    explain: int


def check(query: Query, number: int, users: Vocabulary, catalogue: Catalogue, *, hides: bool) -> Asked:
    """Return a query by ids.

    Args:
        query: The query.
        number: Which one it is, from 1: the name of a list that has no user.
        users: The tokens of users.
        catalogue: The items.
        hides: What `exclude_seen` is if nobody says.

    Raises:
        ConfigError: Something is of another type, or too long.
        DataError: Something is not in the data.
    """
    if query.exclude_seen not in (None, True, False):
        raise ConfigError(f"exclude_seen={query.exclude_seen!r} is True, False or None")
    if isinstance(query.explain, bool) or not isinstance(query.explain, int) or query.explain < 0:
        raise ConfigError(f"explain={query.explain!r} is a number of items, from 0")
    if query.unknown not in ("refuse", "skip"):
        raise ConfigError(f"unknown={query.unknown!r} is 'refuse' or 'skip'")
    user = None if query.user is None else tokens_of(query.user, "user")[0]
    if user is None and query.history is None:
        raise ConfigError("there is no user and no history to recommend by")
    return Asked(
        name=f"history {number}" if user is None else user,
        user=0 if user is None else users.ids.get(user, 0),
        history=None if query.history is None else _history(query, catalogue),
        hidden=catalogue.ids(query.exclude, "exclude"),
        allowed=catalogue.mask(query.filter),
        hides=hides if query.exclude_seen is None else query.exclude_seen,
        explain=query.explain,
    )


def _history(query: Query, catalogue: Catalogue) -> Tensor:
    given = query.history
    assert given is not None
    tokens = [given] if isinstance(given, str) else list(given)
    if len(tokens) > MOST_HISTORY:
        raise ConfigError(f"the history has {len(tokens):,} items; give the last {MOST_HISTORY:,} at most")
    if not tokens:
        raise ConfigError("the history is empty and says nothing of anybody; leave it out")
    ids = (catalogue.ids if query.unknown == "refuse" else catalogue.known_ids)(tokens, "history")
    if not len(ids):
        raise DataError(f"the data has none of the {len(tokens)} items of the history")
    return ids
