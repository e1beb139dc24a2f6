"""An index of the vectors of items, for catalogues in which ranking all of them takes too long."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.errors import CheckpointError, ConfigError, importing
from treadle.files.atomic_io import replace_file
from treadle.recsys.data.sampling.user_items import UserItems
from treadle.recsys.evaluation import NO_ITEM
from treadle.recsys.serve.answers import Answers, Similarities
from treadle.recsys.serve.fold_in import FORMS, FoldedVectors
from treadle.recsys.serve.queries import Asked
from treadle.recsys.serve.recommender import Recommender
from treadle.recsys.serve.tables import Recommendations

RECALL = 0.99
"""Which share of the best items an index has to find."""
TRIED = 200
"""On how many queries that is tried."""
AMONG = 50
"""How many best items are compared."""
PER_LIST = 16
"""Items in a list, times the root of their number: so many lists there are that both stages cost about the same."""
TRAINED_ON = 64
"""How many vectors a list is trained on."""


class VectorIndex:
    """Finds items with high inner products by looking into few lists of neighbouring vectors (faiss, IVF).

    The scores of what it finds are exact. How many lists are looked into is what has given the wanted recall on
    vectors of known users.

    Args:
        index: The index of faiss; the number of an item is its id.
        recall: The share of the best items that it found.
    """

    def __init__(self, index: Any, recall: float) -> None:
        self._index, self.recall = index, recall

    @property
    def probes(self) -> int:
        """How many lists are looked into."""
        return int(self._index.nprobe)

    @classmethod
    def build(cls, items: Tensor, queries: Tensor, *, recall: float = RECALL, seed: int = 0) -> "VectorIndex":
        """Return an index of items.

        Args:
            items: The vector of each id; that of padding is not found.
            queries: Vectors of users, on which the recall is tried.
            recall: The share of the best items that has to be found.
            seed: What the lists begin with.

        Raises:
            MissingDependencyError: faiss is not installed.
        """
        faiss = _faiss()
        vectors = np.ascontiguousarray(items[1:].cpu().numpy(), np.float32)
        number, size = vectors.shape
        lists = max(1, min(number // 39, round(PER_LIST * number**0.5 / 4)))
        quantizer = faiss.IndexFlatIP(size)
        index = faiss.IndexIVFFlat(quantizer, size, lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.seed = seed
        index.cp.max_points_per_centroid = TRAINED_ON
        index.cp.min_points_per_centroid = 1
        index.train(vectors)
        index.add_with_ids(vectors, np.arange(1, number + 1))
        tried = np.ascontiguousarray(queries[:TRIED].cpu().numpy(), np.float32)
        k = min(AMONG, number)
        exact = np.argsort(-(tried @ vectors.T), axis=1, kind="stable")[:, :k] + 1
        found = 0.0
        index.nprobe = 1
        while True:
            ids = index.search(tried, k)[1]
            found = float(np.mean([len(set(row) & set(best)) / k for row, best in zip(ids, exact, strict=True)]))
            if found >= recall or index.nprobe >= lists:
                return cls(index, found)
            index.nprobe = min(lists, index.nprobe + (index.nprobe + 1) // 2)

    def search(self, vectors: Tensor, k: int) -> Tensor:
        """Return the ids of the items with the highest products, best first, `[rows, k]`; -1 where there are none."""
        ids = self._index.search(np.ascontiguousarray(vectors.cpu().numpy(), np.float32), k)[1]
        return torch.from_numpy(ids)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the index to a file, and return it."""
        faiss, target = _faiss(), Path(path)
        replace_file(target, lambda temporary: faiss.write_index(self._index, str(temporary)))
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str], items: Tensor, recall: float) -> "VectorIndex":
        """Read an index that was written for these items.

        Raises:
            CheckpointError: It is damaged, or of other items.
        """
        try:
            index = _faiss().read_index(str(path))
        except RuntimeError as error:
            raise CheckpointError(f"{path} is no index: {str(error).splitlines()[0]}; remove it") from error
        if (index.ntotal, index.d) != (len(items) - 1, items.shape[1]):
            raise CheckpointError(
                f"{path} is an index of {index.ntotal:,} vectors of {index.d} numbers, and there are "
                f"{len(items) - 1:,} of {items.shape[1]}; remove it"
            )
        return cls(index, recall)


def _faiss() -> Any:
    with importing("faiss-cpu", extra="index", user="an index of vectors"):
        import faiss
    return faiss


class IndexedRecommender(Answers):
    """Answers by an index what it can, and exactly what it cannot: lists kept to some items, and what is popular.

    Args:
        recommender: The recommender, whose scores are inner products or cosines of vectors.
        index: The index of its items; None to build one.

    Raises:
        ConfigError: Its scores are something else.
    """

    def __init__(self, recommender: Answers, index: VectorIndex | None = None) -> None:
        super().__init__(
            recommender.users,
            recommender.items,
            recommender.catalogue,
            repeatable=recommender.repeatable,
            device=recommender.device,
        )
        self.exact = recommender
        self._folded, self._users = vectors_of(recommender)
        if index is None:
            warm = recommender.can_score(torch.arange(len(self._users), device=self.device)).nonzero().flatten()
            some = warm[torch.linspace(0, max(len(warm) - 1, 0), min(TRIED, len(warm))).long()]
            index = VectorIndex.build(self._folded.items, self._users[some])
        self.index = index

    def answer(self, asked: Sequence[Asked], k: int) -> Recommendations:
        """Return a list for each query."""
        ids = torch.tensor([one.user for one in asked], dtype=torch.int64, device=self.device)
        warm = self.can_score(ids).tolist()
        quick = [
            place
            for place, one in enumerate(asked)
            if one.allowed is None and not one.explain and (one.history is not None or warm[place])
        ]
        if len(quick) < len(asked) or not 0 < k < len(self.items):
            return self.exact.answer(asked, k)
        vectors = self._vectors(asked, ids)
        hidden = self.hidden(asked, ids)
        most = int(hidden.counts.max()) if len(hidden.counts) else 0
        found = self.index.search(vectors, min(k + most, len(self.items) - 1)).to(self.device)
        items, scores = self._ranked(vectors, found, hidden, k)
        if bool((items == NO_ITEM).any()):
            # The lists that it looked into have fewer than were asked for.
            return self.exact.answer(asked, k)
        cold = torch.zeros(len(asked), dtype=torch.bool)
        return self.table(self.users.field, [one.name for one in asked], items, scores, cold)

    def _vectors(self, asked: Sequence[Asked], ids: Tensor) -> Tensor:
        rows = [
            self._users[user] if one.history is None else self._folded.vectors([one.history])[0]
            for one, user in zip(asked, ids.tolist(), strict=True)
        ]
        return torch.stack(rows)

    def _ranked(self, vectors: Tensor, found: Tensor, hidden: UserItems, k: int) -> tuple[Tensor, Tensor]:
        """Return the best of what was found that is not hidden, and the scores of the model."""
        rows = torch.arange(len(found), device=self.device).unsqueeze(1).expand_as(found)
        gone = (found < 1) | hidden.contains(rows, found.clamp(min=0))
        places = gone.long().sort(dim=1, stable=True).indices[:, :k]
        items = found.gather(1, places).masked_fill(gone.gather(1, places), NO_ITEM)
        own = self._folded.items[items.clamp(min=0)]
        scores = torch.stack(
            [FORMS[self._folded.form](row.unsqueeze(0), some)[0] for row, some in zip(vectors, own, strict=True)]
        )
        return items, scores.masked_fill(items == NO_ITEM, -torch.inf)

    @property
    def known(self) -> UserItems:
        """What each user has in any part of the data."""
        return self.exact.known

    @property
    def popularity(self) -> Tensor:
        """How often each item was used in training."""
        return self.exact.popularity

    def looking(self) -> AbstractContextManager[None]:
        """Return a block in which scores may be asked for."""
        return self.exact.looking()

    def can_score(self, users: Tensor) -> Tensor:
        """Return of which users the model knows something."""
        return self.exact.can_score(users)

    def score_users(self, users: Tensor) -> Tensor:
        """Return the scores of all items for users."""
        return self.exact.score_users(users)

    def score_histories(self, histories: Sequence[Tensor], users: Tensor) -> Tensor:
        """Return the scores of all items for histories."""
        return self.exact.score_histories(histories, users)

    def similarities(self) -> Similarities:
        """Return what compares items."""
        return self.exact.similarities()


def vectors_of(recommender: Answers) -> tuple[FoldedVectors, Tensor]:
    """Return what finds the vectors of somebody new among those of items, and the vectors of users.

    Raises:
        ConfigError: The scores of the recommender are no products of vectors.
    """
    # An export has what finds vectors ready; of a model it is found out.
    found = (
        recommender.history_scorer() if isinstance(recommender, Recommender) else getattr(recommender, "folded", None)
    )
    users = getattr(recommender, "user_vectors", None)
    if not isinstance(found, FoldedVectors) or users is None:
        raise ConfigError(
            "an index is of vectors, and this model's score is no inner product or cosine of two; leave it out"
        )
    return found, users().float()


def indexed(load: Callable[[Path], Answers]) -> Callable[[Path], Answers]:
    """Return what loads recommenders and answers by an index, which is kept beside the model.

    Args:
        load: Loads a recommender.
    """

    def load_indexed(place: Path) -> Answers:
        from treadle.recsys.serve.saved import checksum_of

        recommender = load(place)
        folded, _ = vectors_of(recommender)
        kept = place.with_name(f"{place.name}.{checksum_of(place)[:12]}.index")
        if kept.is_file():
            return IndexedRecommender(recommender, VectorIndex.load(kept, folded.items, RECALL))
        made = IndexedRecommender(recommender)
        made.index.save(kept)
        for older in place.parent.glob(f"{place.name}.*.index"):
            if older != kept:
                older.unlink(missing_ok=True)
        return made

    return load_indexed
