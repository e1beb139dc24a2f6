"""The tokens of a field and their ids, either way."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from torch import Tensor

from treadle.errors import DataError, did_you_mean
from treadle.recsys.optional import pyarrow

NAMED = 5
"""How many unknown tokens an error message names."""


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
            more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
            raise DataError(f"the data has no {self.field} {', '.join(map(repr, unknown[:NAMED]))}{more}")
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
