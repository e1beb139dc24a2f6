"""A trained model and its data: items for users, items like others, vectors for other programs."""

import inspect
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from treadle.errors import ConfigError, DataError
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sampling.user_items import UserItems
from treadle.recsys.data.sequential_dataset import SequentialDataset
from treadle.recsys.models.item_scores import ModelScores, looking
from treadle.recsys.optional import pyarrow
from treadle.recsys.serve.answers import Answers, Similarities
from treadle.recsys.serve.fold_in import FoldIn, HistoryScorer
from treadle.recsys.serve.new_items import new_item_rows, score_new_items
from treadle.recsys.serve.queries import Catalogue
from treadle.recsys.serve.tables import Recommendations, check_format, write_arrays, write_table


class Recommender(Answers):
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
        self.model, self.dataset = model, dataset.to(device)
        self._users, self._items = dataset.uid_field, dataset.iid_field
        names, tokens = dataset.vocabulary(self._users), dataset.vocabulary(self._items)
        super().__init__(
            names, tokens, catalogue_of(self.dataset, device), repeatable=dataset.config["repeatable"], device=device
        )
        self._scores = ModelScores(model, self.dataset, device)
        users, items = (ids.to(device) for ids in dataset.user_item_pairs())
        self._counts = torch.bincount(items, minlength=dataset.item_num)
        self._counts[0] = 0
        self._trained = torch.zeros(dataset.user_num, dtype=torch.bool, device=device)
        self._trained[users] = True
        self._known: UserItems | None = None
        self._ends: Tensor | None = None
        self._by_history: tuple[Any, HistoryScorer] | None = None
        self._compared: tuple[Any, Tensor] | None = None

    def recommend(self, users: Any = None, k: int = 10, *, new_items: Any = None, **given: Any) -> Recommendations:
        """Return the best items for some users, or for histories; see `Answers.recommend`.

        Args:
            users, k: As there.
            new_items: The features of items that the data does not have, by their tokens: a dict of dicts. Models of
                fields, and trees, rank them among the others.
            **given: The other arguments.
        """
        found = super().recommend(users, k, **given)
        if new_items is None:
            return found
        if given.get("history") is not None or given.get("filter") is not None:
            raise ConfigError("new_items are ranked for users by their features; leave history and filter out")
        if not isinstance(new_items, Mapping) or not new_items:
            raise ConfigError(f"new_items={new_items!r} is a dict by the tokens of new items, each with its features")
        rows = new_item_rows(self.model, self.dataset, new_items, self.catalogue.changed)
        ids = torch.tensor([self.users.ids.get(one, 0) for one in found.queries], device=self.device)
        with self.looking():
            scores = score_new_items(self.model, self.user_rows(ids), rows, self._items)
        scores[~self.can_score(ids)] = -torch.inf
        return found.with_others(list(map(str, new_items)), scores.cpu().numpy())

    # What gives the scores ----------------------------------------------------------------------------------

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

    @property
    def popularity(self) -> Tensor:
        """How often each item was used in training."""
        return self._counts

    def known_users(self) -> Tensor:
        """Return the ids of the users that the model was trained on."""
        return self._trained.nonzero().flatten()

    def looking(self) -> AbstractContextManager[None]:
        """Return a block in which the model is in evaluation mode."""
        return looking(self.model)

    def can_score(self, users: Tensor) -> Tensor:
        """Return of which users the model knows something: their rows in training, or, of a sequence, a history."""
        if not isinstance(self.dataset, SequentialDataset):
            return self._trained[users]
        return (users > 0) & (self.known.counts[users] > 0)

    def score_users(self, users: Tensor) -> Tensor:
        """Return the scores of all items for users, by their ids or by what they did."""
        interaction = self._histories(users) if isinstance(self.dataset, SequentialDataset) else self.user_rows(users)
        try:
            return self._scores.all_items(interaction)
        except KeyError as error:
            name = type(self.model).__name__
            raise ConfigError(
                f"{name} scores rows by a column that a recommendation has not: {error.args[0]}"
            ) from error

    def score_histories(self, histories: Sequence[Tensor], users: Tensor) -> Tensor:
        """Return the scores of all items for histories."""
        try:
            return self.history_scorer().scores(histories, users)
        except KeyError as error:
            name = type(self.model).__name__
            raise ConfigError(
                f"{name} cannot recommend by a history: it reads a column that a list of items has not: {error.args[0]}"
            ) from error

    def history_scorer(self) -> HistoryScorer:
        """Return what scores by histories with the weights as they are.

        Raises:
            ConfigError: The model does not go by them.
        """
        weights = weights_now(self.model)
        if self._by_history is None or self._by_history[0] != weights:
            known = self.known_users()
            with self.looking():
                found = FoldIn(self.model, self.dataset, self.device, self.user_rows, known).scorer(self.vectors)
            self._by_history = (weights, found)
        return self._by_history[1]

    def user_rows(self, users: Tensor) -> Interaction:
        """Return users as rows that the model scores, with what is known of them."""
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

    def similarities(self) -> Similarities:
        """Return what gives the similarity of some items to all, `[items, all items]`."""
        own: Similarities | None = getattr(self.model, "item_similarities", None)
        if own is not None:
            return own
        weights = weights_now(self.model)
        if self._compared is None or self._compared[0] != weights:
            self._compared = (weights, functional.normalize(self.item_vectors().float(), dim=1))
        vectors = self._compared[1]
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

    def vectors(self, of: str) -> Tensor:
        """Return the vector of each "item" id, or of each "user" id."""
        return self.item_vectors() if of == "item" else self.user_vectors()

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
        """Write the vectors of items, or users, with their tokens, to a file.

        In Parquet and Arrow a vector is one list; in text each of its numbers has a column. A `.npz` of NumPy has the
        arrays `tokens` and `embeddings`.

        Args:
            path: The file: `.csv`, `.tsv`, `.parquet`, `.arrow` or `.npz`.
            of: "item" or "user".

        Raises:
            ConfigError: The model has no such vectors, or the file has another suffix.
        """
        if of not in ("item", "user"):
            raise ConfigError(f"of={of!r}: there are vectors of 'item' and of 'user'")
        target = Path(path)
        if target.suffix != ".npz":
            check_format(target)
        vectors = np.ascontiguousarray(self.vectors(of)[1:].float().cpu().numpy())
        vocabulary = self.items if of == "item" else self.users
        tokens = vocabulary.tokens[1:].astype(str)
        if target.suffix == ".npz":
            return write_arrays(target, tokens=tokens, embeddings=vectors)
        columns: dict[str, Any] = {vocabulary.field: tokens}
        arrow = pyarrow()
        if target.suffix in (".parquet", ".arrow"):
            columns["embedding"] = arrow.FixedSizeListArray.from_arrays(
                arrow.array(vectors.reshape(-1)), vectors.shape[1]
            )
        else:
            columns |= {f"e{place}": column for place, column in enumerate(vectors.T)}
        return write_table(target, arrow.table(columns))

    def export_recommendations(
        self, path: str | os.PathLike[str], k: int = 10, *, exclude_seen: bool | None = None
    ) -> Path:
        """Write the best items for every user of the data to a `.csv`, `.tsv`, `.parquet` or `.arrow` file."""
        check_format(path)
        return self.recommend_all(k, exclude_seen=exclude_seen).write(path)


def _takes_no_arguments(method: Any) -> bool:
    """Whether a method can be called without arguments, as that of a graph which has everything it needs."""
    parameters = inspect.signature(method).parameters.values()
    # A module that does not define its `forward` has one that takes anything, only to refuse it.
    return all(one.default is not one.empty or one.kind is one.VAR_KEYWORD for one in parameters)


def weights_now(model: Any) -> Any:
    """Return what tells the weights of a model, as they are, from those that it had before."""
    tensors = (*model.parameters(), *model.buffers())
    return tuple((one.data_ptr(), one._version) for one in tensors)


def catalogue_of(dataset: Dataset, device: torch.device) -> Catalogue:
    """Return the items of a data set, and what is known of them."""
    config, field = dataset.config, str(dataset.iid_field)
    changed: dict[str, str] = dict.fromkeys(config["normalize_field"] or (), "scaled to 0..1 by normalize_field")
    if config["normalize_all"]:
        changed = {
            name: "scaled to 0..1 by normalize_all" for name, kind in dataset.field2type.items() if not kind.is_token
        }
    changed |= dict.fromkeys(config["discretization"] or (), "in buckets, by discretization")
    names = [name for name, kind in dataset.field2type.items() if kind.is_token]
    tokens = {name: dataset.vocabulary(name) for name in names if name in dataset.field2id_token}
    return Catalogue(dataset.vocabulary(field), dataset.item_feat, dataset.field2type, tokens, changed, device)
