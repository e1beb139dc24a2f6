"""Scores for people whom a model was not trained on, by what they did.

How a model can do that depends on what a user is to it:

- Models of sequences run on the history.
- Models whose user is nothing but a history, such as EASE and autoencoders, are given another one. That this is so is
  not assumed: some known users have to get the same scores by their own histories.
- A model with a method `score_histories(histories)` does it by itself.
- Where a score is the inner product of two vectors, or their cosine, the vector of somebody new is found by least
  squares on the vectors of items. That it is such a product is looked into as well.
- Others refuse, with the reason.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from treadle.errors import ConfigError
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sequential_dataset import SequentialDataset
from treadle.recsys.enums import ModelType
from treadle.recsys.models.histories import Histories
from treadle.recsys.models.item_scores import ModelScores

SERVE_HISTORIES = (
    "models of sequences, item models such as EASE, ItemKNN and GFCF, autoencoders, and factorisations whose score is "
    "an inner product or a cosine serve histories"
)
LOOKED_AT = 8
"""How many known users show whether a model can be given other histories."""
CALIBRATED_ON = 64
"""How many known users decide how the vector of somebody new is found."""
ITEMS_COMPARED = 10_000
"""On how many items their scores are compared."""
TOLERANCE = 1e-3
"""How far scores may be from those they are to be, relative to how far the scores of a user are from each other."""
REASONS = {
    ModelType.CONTEXT: "it scores rows of fields, and what somebody did is none of them",
    ModelType.DECISIONTREE: "it scores rows of fields, and what somebody did is none of them",
}
"""Why kinds of models do not go by histories."""


class HistoryScorer(ABC):
    """Scores all items for people, by their histories."""

    @abstractmethod
    def scores(self, histories: Sequence[Tensor], users: Tensor) -> Tensor:
        """Return the scores of all items, `[histories, n_items]`.

        Args:
            histories: The ids of each one's items, oldest first; at least one.
            users: The id of each user, 0 for those that the data does not have.
        """


class FoldIn:
    """Finds out how a model can go by histories.

    Args:
        model: The model, in evaluation mode whenever this is used.
        dataset: The data that it was trained on.
        device: Where the model is.
        user_rows: Returns the rows by which the model scores some users.
        known_users: The ids of users that it was trained on.
    """

    def __init__(
        self,
        model: Any,
        dataset: Dataset,
        device: torch.device,
        user_rows: Callable[[Tensor], Interaction],
        known_users: Tensor,
    ) -> None:
        self._model, self._dataset, self._device = model, dataset, device
        self._rows, self._known = user_rows, known_users
        self._scores = ModelScores(model, dataset, device)

    def scorer(self, vectors: Callable[[str], Tensor]) -> HistoryScorer:
        """Return what scores by histories.

        Args:
            vectors: Returns the vectors of all "user"s or "item"s; it raises if there are none.

        Raises:
            ConfigError: The model cannot go by them.
        """
        if isinstance(self._dataset, SequentialDataset):
            return SequenceScorer(self._scores, self._dataset, self._device)
        if hasattr(self._model, "score_histories"):
            return _OwnScorer(self._model, self._dataset, self._device)
        if isinstance(getattr(self._model, "histories", None), Histories):
            swapped = _SwappedHistories(self._model, self._scores, self._dataset, self._device)
            if self._gives_the_same(swapped):
                return swapped
        return self._folded(vectors)

    def _folded(self, vectors: Callable[[str], Tensor]) -> HistoryScorer:
        kind = getattr(self._model, "type", None)
        if kind in REASONS:
            raise self._refusal(REASONS[kind])
        try:
            users, items = vectors("user").float(), vectors("item").float()
        except ConfigError as error:
            raise self._refusal(self._why_not(error)) from error
        form = self._form(users, items)
        if form is None:
            raise self._refusal("its score of a user and an item is no inner product, so that nothing is to be solved")
        own = self.histories_of(self._sample(CALIBRATED_ON))
        return FoldedVectors(items, form, *calibrate(items, form, users[self._sample(CALIBRATED_ON)], own))

    def _why_not(self, no_vectors: ConfigError) -> str:
        if hasattr(self._model, "histories"):
            return "its users are more than their histories: it has found something for each of them"
        return str(no_vectors).partition(": ")[2] or str(no_vectors)

    def _refusal(self, reason: str) -> ConfigError:
        name = type(self._model).__name__
        return ConfigError(f"{name} cannot recommend by a history: {reason}; {SERVE_HISTORIES}")

    def _sample(self, number: int) -> Tensor:
        """Return some known users, from all over the data."""
        if len(self._known) <= number:
            return self._known
        places = torch.linspace(0, len(self._known) - 1, number, device=self._known.device)
        return self._known[places.long()]

    def histories_of(self, users: Tensor) -> list[Tensor]:
        """Return the items of each of some users in the data for training."""
        owners, items = (ids.to(self._device) for ids in self._dataset.user_item_pairs())
        return [torch.unique(items[owners == user]) for user in users]

    def _own_scores(self, users: Tensor) -> Tensor:
        return self._scores.all_items(self._rows(users)).float()

    def _gives_the_same(self, scorer: HistoryScorer) -> bool:
        users = self._sample(LOOKED_AT)
        if not len(users):
            return False
        try:
            found = scorer.scores(self.histories_of(users), users)
        except (RuntimeError, IndexError):
            # A model that has something else for each of its users is not as large as other people's histories.
            return False
        return is_same(found, self._own_scores(users))

    def _form(self, users: Tensor, items: Tensor) -> str | None:
        """Return which function of vectors the scores are; None if they are something else."""
        some = self._sample(LOOKED_AT)
        if users.shape[1] != items.shape[1] or not len(some):
            return None
        wanted = self._own_scores(some)
        for form, score in FORMS.items():
            if is_same(score(users[some], items), wanted):
                return form
        return None


def is_same(found: Tensor, wanted: Tensor) -> bool:
    """Whether scores are the same but for rounding, padding left out."""
    found, wanted = found[:, 1:].double(), wanted[:, 1:].double()
    apart = (found - wanted).abs().amax(dim=1)
    return bool((apart <= TOLERANCE * wanted.std(dim=1, correction=0) + 1e-12).all())


FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dot": lambda users, items: users @ items.T,
    "sigmoid": lambda users, items: (users @ items.T).sigmoid(),
    "cosine": lambda users, items: functional.normalize(users, dim=1) @ functional.normalize(items, dim=1).T,
}
"""What a model may make of two vectors."""


class SequenceScorer(HistoryScorer):
    """Runs a model of sequences on histories.

    Args:
        scores: The scores of the model.
        dataset: The data, which says how long a history may be and what its columns are called.
        device: Where the model is.
    """

    def __init__(self, scores: ModelScores, dataset: SequentialDataset, device: torch.device) -> None:
        self._scores, self._dataset, self._device = scores, dataset, device

    def scores(self, histories: Sequence[Tensor], users: Tensor) -> Tensor:
        """Return the scores of what comes next."""
        return self._scores.all_items(self.rows(histories, users))

    def rows(self, histories: Sequence[Tensor], users: Tensor) -> Interaction:
        """Return histories as the model reads them: the last items that it takes, with zeros behind them."""
        data = self._dataset
        assert data.uid_field is not None
        assert data.iid_field is not None
        kept = [one[-data.max_item_list_len :] for one in histories]
        lengths = torch.tensor([len(one) for one in kept], device=self._device)
        items = torch.zeros(len(kept), data.max_item_list_len, dtype=torch.int64, device=self._device)
        for row, one in zip(items, kept, strict=True):
            row[: len(one)] = one
        columns = {
            data.uid_field: users,
            f"{data.iid_field}{data.config['LIST_SUFFIX']}": items,
            data.item_list_length_field: lengths,
        }
        return data.join(Interaction.of_columns(columns, len(kept)))


def as_histories(histories: Sequence[Tensor], n_items: int, device: torch.device) -> Histories:
    """Return histories as models keep them; an item that comes twice is there once."""
    sets = [torch.unique(one.cpu()) for one in histories]
    owners = torch.repeat_interleave(torch.arange(len(sets)), torch.tensor([len(one) for one in sets]))
    return Histories(owners, torch.cat(sets), len(sets), n_items).to(device)


class _OwnScorer(HistoryScorer):
    """Asks the model's method `score_histories`."""

    def __init__(self, model: Any, dataset: Dataset, device: torch.device) -> None:
        self._model, self._n_items, self._device = model, dataset.item_num, device

    def scores(self, histories: Sequence[Tensor], users: Tensor) -> Tensor:
        found: Tensor = self._model.score_histories(as_histories(histories, self._n_items, self._device))
        return found.view(len(histories), -1)


class _SwappedHistories(HistoryScorer):
    """Has a model take other people's histories for those of its users."""

    def __init__(self, model: Any, scores: ModelScores, dataset: Dataset, device: torch.device) -> None:
        self._model, self._scores, self._device = model, scores, device
        self._field, self._n_items = str(dataset.uid_field), dataset.item_num

    def scores(self, histories: Sequence[Tensor], users: Tensor) -> Tensor:
        rows = torch.arange(len(histories), device=self._device)
        with self._given(as_histories(histories, self._n_items, self._device)):
            return self._scores.all_items(Interaction.of_columns({self._field: rows}, len(rows)))

    @contextmanager
    def _given(self, histories: Histories) -> Iterator[None]:
        own = self._model.histories
        self._model.histories = histories
        try:
            yield
        finally:
            self._model.histories = own


# Vectors of people who have none, by least squares


CONFIDENCES = (0.0, 1e-3, 1e-2, 1e-1)
"""How much an item that is not in a history counts, relative to one that is."""
PENALTIES = (0.1, 1.0, 10.0, 100.0)
"""How much the square of a vector counts, relative to the mean square of the numbers of items."""


def solve(items: Tensor, gram: Tensor, history: Tensor, confidence: float, penalty: float) -> Tensor:
    """Return the vector whose products with the items of a history are 1 and with all others 0, by least squares.

    It is the closed form of Hu, Koren and Volinsky, "Collaborative filtering for implicit feedback datasets", 2008.

    Args:
        items: The vectors of all items.
        gram: Their products with each other, `[size, size]`.
        history: The ids of the items.
        confidence: How much an item outside of it counts.
        penalty: How much the square of the vector counts.
    """
    own = items[history]
    matrix = own.T @ own + confidence * gram
    matrix.diagonal().add_(penalty)
    return torch.cholesky_solve(own.sum(dim=0).unsqueeze(1), torch.linalg.cholesky(matrix)).squeeze(1)


def calibrate(items: Tensor, form: str, users: Tensor, histories: Sequence[Tensor]) -> tuple[float, float, float]:
    """Return with which confidence and penalty, and times which number, vectors come nearest to those of known users.

    Near is how their scores go together over items, on average over the users.
    """
    vectors = _directed(items, form)
    gram = vectors.T @ vectors
    unit = float(vectors.square().mean())
    some = vectors[torch.linspace(1, len(vectors) - 1, min(len(vectors) - 1, ITEMS_COMPARED)).long()]
    wanted = _centred(users @ some.T)
    best, chosen = -2.0, (0.0, unit, 1.0)
    for confidence in CONFIDENCES:
        for penalty in PENALTIES:
            made = torch.stack([solve(vectors, gram, one, confidence, penalty * unit) for one in histories])
            found = _centred(made @ some.T)
            near = float(functional.cosine_similarity(found, wanted, dim=1).mean())
            if near > best:
                times = float((found * wanted).sum() / found.square().sum().clamp(min=1e-30))
                best, chosen = near, (confidence, penalty * unit, times if times > 0 else 1.0)
    return chosen


def _directed(items: Tensor, form: str) -> Tensor:
    return functional.normalize(items, dim=1) if form == "cosine" else items


def _centred(scores: Tensor) -> Tensor:
    return scores - scores.mean(dim=1, keepdim=True)


class FoldedVectors(HistoryScorer):
    """Gives people the vectors that least squares finds for their histories.

    Args:
        items: The vectors of all items.
        form: What the model makes of two vectors, by its name in `FORMS`.
        confidence, penalty: As for `solve`.
        times: What the vector is multiplied with, to be as long as those of known users.
    """

    def __init__(self, items: Tensor, form: str, confidence: float, penalty: float, times: float) -> None:
        self.items, self.form = _directed(items, form), form
        self.confidence, self.penalty, self.times = confidence, penalty, times
        self.gram = self.items.T @ self.items

    def vectors(self, histories: Sequence[Tensor]) -> Tensor:
        """Return the vector of each history, `[histories, size]`."""
        made = [solve(self.items, self.gram, torch.unique(one), self.confidence, self.penalty) for one in histories]
        return torch.stack(made) * self.times

    def scores(self, histories: Sequence[Tensor], users: Tensor) -> Tensor:
        """Return what the model makes of these vectors and those of items."""
        return FORMS[self.form](self.vectors(histories), self.items)
