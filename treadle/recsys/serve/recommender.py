"""What a trained model is for: items for users, items like others, vectors for other programs."""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.files.atomic_io import replace_file
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sampling.user_items import UserItems
from treadle.recsys.data.sequential_dataset import SequentialDataset
from treadle.recsys.evaluation import NO_ITEM, recommend_items
from treadle.recsys.evaluation.scoring import top_items, users_at_once
from treadle.recsys.models.item_scores import ModelScores, looking
from treadle.recsys.optional import pyarrow
from treadle.runs.html_table import html_table

# Tables of recommendations: what was found, for readers and for files


FORMATS = (".csv", ".tsv", ".parquet")
SHOWN = 20
"""How many rows are printed."""


class Recommended(NamedTuple):
    """An item in a list: for whom, at which place from 1, which item, and its score."""

    query: str
    rank: int
    item: str
    score: float


@dataclass(frozen=True)
class Recommendations:
    """The best items for each of some users, or those most like each of some items.

    Attributes:
        of: What the lists are for: the name of the field with users, or with items.
        queries: For whom, or for which item, each list is.
        items: The items, best first, `[queries, k]`; empty text where there are no more.
        scores: Their scores; -inf where there are no more.
        cold: Whether the model knows nothing of a user, so that the list is what is popular.
    """

    of: str
    queries: list[str]
    items: np.ndarray[Any, Any]
    scores: np.ndarray[Any, Any]
    cold: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, query: Any) -> list[str]:
        """Return the items for a user, best first, by the user's token."""
        name = str(query)
        if name not in self.queries:
            raise DataError(f"there is no list for {name!r}{did_you_mean(name, self.queries)}")
        return [item for item in self.items[self.queries.index(name)].tolist() if item]

    def __iter__(self) -> Iterator[Recommended]:
        for query, items, scores in zip(self.queries, self.items.tolist(), self.scores.tolist(), strict=True):
            for rank, (item, score) in enumerate(zip(items, scores, strict=True), start=1):
                if item:
                    yield Recommended(query, rank, item, score)

    def to_arrow(self) -> Any:
        """Return a row for each item of each list, as an Arrow table."""
        rows = list(self)
        columns = {
            self.of: [row.query for row in rows],
            "rank": [row.rank for row in rows],
            "item": [row.item for row in rows],
            "score": np.array([row.score for row in rows], np.float32),
        }
        return pyarrow().table(columns)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write a row for each item of each list to a `.csv`, `.tsv` or `.parquet` file; return the file."""
        return write_table(path, self.to_arrow())

    def _repr_html_(self) -> str:
        """Show the lists as a table in a notebook."""
        lists = list(zip(self.queries, self.items.tolist(), self.cold.tolist(), strict=True))[:SHOWN]
        rows = [[f"{query}{' (popular)' if cold else ''}", *items] for query, items, cold in lists]
        places = range(1, self.items.shape[1] + 1)
        more = len(self) - SHOWN
        return html_table([self.of, *places], rows, f"the first {SHOWN}; there are {more} more" if more > 0 else "")

    def __str__(self) -> str:
        lines = []
        for query, cold in list(zip(self.queries, self.cold.tolist(), strict=True))[:SHOWN]:
            lines.append(f"{query}{' (popular)' if cold else ''}: {', '.join(self[query]) or 'nothing is left'}")
        more = len(self) - SHOWN
        return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])


def write_table(path: str | os.PathLike[str], table: Any) -> Path:
    """Write an Arrow table in the format that the suffix of the file says; the file is complete or not there.

    Raises:
        ConfigError: The suffix is none that can be written.
        DataError: The file cannot be written.
    """
    target = Path(path)
    check_format(target)
    arrow = pyarrow()

    def write(temporary: Path) -> None:
        if target.suffix == ".parquet":
            arrow.parquet.write_table(table, temporary)
            return
        options = arrow.csv.WriteOptions(delimiter="\t" if target.suffix == ".tsv" else ",")
        arrow.csv.write_csv(table, temporary, options)

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, write)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error}") from error
    return target


def check_format(path: str | os.PathLike[str]) -> None:
    """Refuse a file whose suffix is none that can be written.

    Raises:
        ConfigError: It is none.
    """
    suffix = Path(path).suffix
    if suffix not in FORMATS:
        raise ConfigError(f"{os.fspath(path)}: {suffix or 'no suffix'} is no format of a table; use one of {FORMATS}")


class Recommender:
    """Recommends with a model that was trained on the data for training.

    Args:
        model: The model, on its device.
        dataset: The data that it was trained on: the part for training of a divided data set.
        device: Where the model is.

    Raises:
        ConfigError: The data has no users or no items.
    """

    def __init__(self, model: Any, dataset: Dataset, device: torch.device) -> None:
        if dataset.uid_field is None or dataset.iid_field is None:
            raise ConfigError("recommending needs USER_ID_FIELD and ITEM_ID_FIELD, and the data has them not both")
        self.model, self.dataset, self.device = model, dataset.to(device), device
        self._users, self._items = dataset.uid_field, dataset.iid_field
        self._scores = ModelScores(model, self.dataset, device)
        users, items = (ids.to(device) for ids in dataset.user_item_pairs())
        self._counts = torch.bincount(items, minlength=dataset.item_num)
        self._counts[0] = 0
        self._trained = torch.zeros(dataset.user_num, dtype=torch.bool, device=device)
        self._trained[users] = True
        self._known: UserItems | None = None
        self._ends: Tensor | None = None

    # Items for users ----------------------------------------------------------------------------------------

    def recommend(self, user_tokens: Any, k: int = 10, *, exclude_seen: bool | None = None) -> Recommendations:
        """Return the best items for some users.

        A user that the model was not trained on gets what is most popular in training, without what is known of the
        user. Of equal scores the item that came first in the data comes first.

        Args:
            user_tokens: The user, or several, by the tokens that the data has; unknown ones may be among them.
            k: How many items each gets.
            exclude_seen: Whether items that a user has in any part of the data are left out; by default unless the
                settings say `repeatable`.

        Raises:
            ConfigError: There are not so many items.
        """
        tokens = _tokens(user_tokens)
        hides = not self.dataset.config["repeatable"] if exclude_seen is None else exclude_seen
        ids = self._ids_or_zero(tokens)
        warm = self._can_score(ids)
        seen = self.known if hides else self._nothing()
        items = torch.full((len(ids), k), NO_ITEM, device=self.device)
        scores = torch.full((len(ids), k), -torch.inf, device=self.device)
        with looking(self.model):
            for chosen, scorer in ((warm, self._score), (~warm, self._popularity)):
                if bool(chosen.any()):
                    items[chosen], scores[chosen] = recommend_items(scorer, ids[chosen], k, seen=seen)
        return self._table(self._users, tokens, items, scores, ~warm)

    def recommend_all(self, k: int = 10, *, exclude_seen: bool | None = None) -> Recommendations:
        """Return the best items for every user of the data."""
        tokens = self.dataset.vocabulary(self._users).tokens[1:]
        return self.recommend(tokens.tolist(), k, exclude_seen=exclude_seen)

    @property
    def known(self) -> UserItems:
        """What each user has in any part of the data."""
        if self._known is None:
            data = self.dataset
            whole = data.flat if isinstance(data, SequentialDataset) else data.prepared.features["inter"]
            pairs = data.inter_feat if whole is None else whole
            users, items = pairs[self._users].to(self.device), pairs[self._items].to(self.device)
            real = items > 0
            self._known = UserItems(users[real], items[real], num_users=data.user_num, num_items=data.item_num)
        return self._known

    def _nothing(self) -> UserItems:
        none = torch.empty(0, dtype=torch.int64, device=self.device)
        return UserItems(none, none, num_users=self.dataset.user_num, num_items=self.dataset.item_num)

    def _ids_or_zero(self, tokens: Sequence[str]) -> Tensor:
        """Return the id of each user, 0 for those that the data does not have."""
        known = self.dataset.vocabulary(self._users).ids
        return torch.tensor([known.get(token, 0) for token in tokens], dtype=torch.int64, device=self.device)

    def _can_score(self, ids: Tensor) -> Tensor:
        """Return of which users the model knows something: their rows in training, or, of a sequence, a history."""
        if not isinstance(self.dataset, SequentialDataset):
            return self._trained[ids]
        return self.known.counts[ids] > 0

    def _score(self, users: Tensor) -> Tensor:
        interaction = self._histories(users) if isinstance(self.dataset, SequentialDataset) else self._rows(users)
        try:
            return self._scores.all_items(interaction)
        except KeyError as error:
            raise ConfigError(
                f"{type(self.model).__name__} scores rows by a column that a recommendation has not: {error.args[0]}"
            ) from error

    def _rows(self, users: Tensor) -> Interaction:
        return self.dataset.join(Interaction.of_columns({self._users: users}, len(users)))

    def _histories(self, users: Tensor) -> Interaction:
        """Return what each user did last, in any part of the data."""
        data = self.dataset
        assert isinstance(data, SequentialDataset)
        if data.flat is None:
            raise DataError("recommending goes by the interactions of users, and this data brings histories instead")
        if self._ends is None:
            owners = data.flat[self._users]
            self._ends = torch.searchsorted(owners, torch.arange(data.user_num + 1, device=owners.device))
        begins, ends = self._ends[users], self._ends[users + 1]
        lengths = (ends - begins).clamp(max=data.max_item_list_len)
        columns = data.windows(ends - lengths, lengths)
        columns |= {self._users: users, data.item_list_length_field: lengths}
        return data.join(Interaction.of_columns(columns, len(users)))

    def _popularity(self, users: Tensor) -> Tensor:
        return self._counts.float().expand(len(users), -1).clone()

    def _table(self, of: str, queries: list[str], items: Tensor, scores: Tensor, cold: Tensor) -> Recommendations:
        tokens = self.dataset.vocabulary(self._items).tokens
        there = items != NO_ITEM
        names = np.where(there.cpu().numpy(), tokens[items.clamp(min=0).cpu().numpy()], "")
        return Recommendations(of, list(queries), names, scores.float().cpu().numpy(), cold.cpu().numpy())

    # Items like others --------------------------------------------------------------------------------------

    def similar_items(self, item_tokens: Any, k: int = 10) -> Recommendations:
        """Return the items most like some items: by the cosine of their vectors, or by the model's own similarity.

        Args:
            item_tokens: The item, or several, by the tokens that the data has.
            k: How many items each gets.

        Raises:
            ConfigError: There are not so many items, or the model has no vectors of items.
            DataError: The data does not have an item.
        """
        tokens = _tokens(item_tokens)
        ids = torch.from_numpy(self.dataset.token2id(self._items, tokens)).to(self.device)
        if not 0 < k < self.dataset.item_num - 1:
            raise ConfigError(f"k={k}: an item has {self.dataset.item_num - 2} others; ask for at least one of them")
        pieces = torch.split(ids, users_at_once(self.dataset.item_num, self.device))
        with looking(self.model):
            similarities = self._similarities()
            found = [_nearest(similarities(some), some, k) for some in pieces]
        items, scores = (torch.cat(parts) for parts in zip(*found, strict=True))
        return self._table(self._items, tokens, items, scores, torch.zeros(len(ids), dtype=torch.bool))

    def _similarities(self) -> Callable[[Tensor], Tensor]:
        """Return what gives the similarity of some items to all, `[items, all items]`."""
        own: Callable[[Tensor], Tensor] | None = getattr(self.model, "item_similarities", None)
        if own is not None:
            return own
        vectors = functional.normalize(self.item_vectors().float(), dim=1)
        return lambda ids: vectors[ids] @ vectors.T

    # Vectors ------------------------------------------------------------------------------------------------

    def item_vectors(self) -> Tensor:
        """Return the vector of each item id, `[items, size]`.

        Raises:
            ConfigError: The model has none.
        """
        return self._vectors("item", 1, self.dataset.item_num)

    def user_vectors(self) -> Tensor:
        """Return the vector of each user id, `[users, size]`.

        Raises:
            ConfigError: The model has none.
        """
        return self._vectors("user", 0, self.dataset.user_num)

    def _vectors(self, of: str, place: int, number: int) -> Tensor:
        """Return vectors: by a method of the model, by what its graph makes of them, or as it has them."""
        model = self.model
        own = getattr(model, f"{of}_vectors", None)
        with looking(model):
            if own is not None and _takes_no_arguments(own):
                found = own()
            elif _takes_no_arguments(model.forward):
                found = model.forward()[place]
            else:
                found = getattr(getattr(model, f"{of}_embedding", None), "weight", None)
        if not isinstance(found, Tensor) or found.dim() != 2 or len(found) < number:
            raise ConfigError(f"{type(model).__name__} has no vectors of {of}s{self._why_not(of)}")
        return found[:number].detach()

    def _why_not(self, of: str) -> str:
        """Return, in words, why the model has no vectors, or what would give it some."""
        reason = getattr(self.model, "no_vectors", "")
        if not reason and hasattr(self.model, "item_similarities"):
            reason = "it goes by similarities of whole items, which similar_items shows"
        return f": {reason}" if reason else f"; give it a method {of}_vectors() that returns one for each id"

    def export_embeddings(self, path: str | os.PathLike[str], of: str = "item") -> Path:
        """Write the vectors of items, or users, with their tokens, to a `.csv`, `.tsv` or `.parquet` file.

        In Parquet a vector is one list; in text each of its numbers has a column.

        Args:
            path: The file.
            of: "item" or "user".

        Raises:
            ConfigError: The model has no such vectors, or the file has another suffix.
        """
        if of not in ("item", "user"):
            raise ConfigError(f"of={of!r}: there are vectors of 'item' and of 'user'")
        check_format(path)
        vectors = (self.item_vectors() if of == "item" else self.user_vectors())[1:].float().cpu().numpy()
        field = self._items if of == "item" else self._users
        columns: dict[str, Any] = {field: self.dataset.vocabulary(field).tokens[1:].astype(str)}
        arrow = pyarrow()
        if Path(path).suffix == ".parquet":
            flat = arrow.array(np.ascontiguousarray(vectors).reshape(-1))
            columns["embedding"] = arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        else:
            columns |= {f"e{place}": column for place, column in enumerate(vectors.T)}
        return write_table(path, arrow.table(columns))

    def export_recommendations(
        self, path: str | os.PathLike[str], k: int = 10, *, exclude_seen: bool | None = None
    ) -> Path:
        """Write the best items for every user of the data to a `.csv`, `.tsv` or `.parquet` file."""
        check_format(path)
        return self.recommend_all(k, exclude_seen=exclude_seen).write(path)


def _nearest(similarities: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the items most similar to each of some, itself and padding left out, and how similar they are."""
    scores = similarities.float()
    scores[:, 0] = -torch.inf
    scores.scatter_(1, ids.unsqueeze(1), -torch.inf)
    items, values, _ = top_items(scores, k)
    return items, values


def _tokens(given: Any) -> list[str]:
    if isinstance(given, (str, int, np.integer)):
        return [str(given)]
    if not isinstance(given, Iterable):
        raise ConfigError(f"{given!r} is no token, and no list of tokens")
    return [str(token) for token in given]


def _takes_no_arguments(method: Any) -> bool:
    """Whether a method can be called without arguments, as that of a graph which has everything it needs."""
    parameters = inspect.signature(method).parameters.values()
    # A module that does not define its `forward` has one that takes anything, only to refuse it.
    return all(one.default is not one.empty or one.kind is one.VAR_KEYWORD for one in parameters)
