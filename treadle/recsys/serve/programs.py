"""A model as a program of torch or ONNX that scores all items: by vectors, by histories, by sequences, or by ids.

Which of these a model is depends on what a user is to it, as in `fold_in`. What a program takes:

- "vectors": the vector of each user, `vectors` of `[rows, size]`. Those of users are exported beside it.
- "history": which items each has, `history` of `[rows, n_items]`, 1 for those and 0 for others.
- "sequence": the last items of each, `items` of `[rows, length]` with zeros behind them, and how many, `lengths`.
- "users": the ids of users, `users` of `[rows]`.
- "rows": the columns of rows by name, `[rows]`; a score for each row, not for each item.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sequential_dataset import SequentialDataset
from treadle.recsys.enums import ModelType
from treadle.recsys.models.abstract_recommender import AbstractRecommender
from treadle.recsys.models.bases.fitted import FittedRecommender
from treadle.recsys.models.constants import Constants
from treadle.recsys.serve.fold_in import FORMS, FoldedVectors, FoldIn, HistoryScorer, SequenceScorer, is_same
from treadle.recsys.serve.recommender import Recommender

MOST_CELLS = 1 << 28
"""How many numbers the matrix of similarities of all items may have: 1 GiB of them."""
EXAMPLES = 4
"""How many users stand in an example."""


@dataclass(frozen=True)
class Scoring:
    """A program to be, and an example of what it takes.

    Attributes:
        kind: What it takes; see above.
        module: What scores.
        example: Inputs by name.
        folded: What finds the vectors of somebody new, for "vectors".
    """

    kind: str
    module: nn.Module
    example: dict[str, Tensor]
    folded: FoldedVectors | None = None


def scoring_of(recommender: Recommender) -> Scoring:
    """Return a model's scoring as something that can be exported; it shares the weights of the model.

    Raises:
        ConfigError: The model cannot be one; the message says why.
    """
    model, data = recommender.model, recommender.dataset
    kind = getattr(model, "type", None)
    if kind is ModelType.DECISIONTREE:
        raise ConfigError(
            f"{type(model).__name__} is trees; model.save_booster(path) writes them in the format of their library"
        )
    known = recommender.known_users()
    if not len(known):
        raise ConfigError(f"{type(model).__name__} was trained on no user, so that there is no example to export with")
    users = known[:EXAMPLES]
    with recommender.looking():
        if isinstance(data, SequentialDataset):
            return _sequence_scoring(recommender, users)
        if kind is ModelType.CONTEXT:
            return _row_scoring(recommender, users)
        for found in (_history_scoring(recommender, users), _vector_scoring(recommender)):
            if found is not None:
                return found
    if type(model).full_sort_predict is AbstractRecommender.full_sort_predict:
        raise ConfigError(
            f"{type(model).__name__} scores pairs of a user and an item, one by one; a program for all items would be "
            "as many runs of it"
        )
    by_id = _ById(model, str(data.uid_field))
    with recommender.looking():
        by_id(users)  # what the model remembers is calculated before it is traced
    return Scoring("users", by_id, {"users": users})


def _vector_scoring(recommender: Recommender) -> Scoring | None:
    try:
        scorer = recommender.history_scorer()
    except ConfigError:
        return None
    if not isinstance(scorer, FoldedVectors):
        return None
    users = recommender.user_vectors()[recommender.known_users()[:EXAMPLES]].float()
    return Scoring("vectors", _Products(scorer.items, scorer.form), {"vectors": users}, scorer)


class _Products(nn.Module):
    """Scores vectors of users by those of items."""

    items: Tensor

    def __init__(self, items: Tensor, form: str) -> None:
        super().__init__()
        self.register_buffer("items", items.detach().clone())
        self._form = form

    def forward(self, vectors: Tensor) -> Tensor:
        return FORMS[self._form](vectors, self.items)


def _sequence_scoring(recommender: Recommender, users: Tensor) -> Scoring:
    data, model = recommender.dataset, recommender.model
    assert isinstance(data, SequentialDataset)
    scorer = recommender.history_scorer()
    assert isinstance(scorer, SequenceScorer)
    if type(model).full_sort_predict is AbstractRecommender.full_sort_predict:
        raise ConfigError(
            f"{type(model).__name__} scores an item with a history, one by one; a program for all items would be as "
            "many runs of it"
        )
    histories = [recommender.known.select(user.unsqueeze(0))[1] for user in users]
    rows = scorer.rows([one for one in histories if len(one)], users)
    items, lengths = f"{data.iid_field}{data.config['LIST_SUFFIX']}", data.item_list_length_field
    example = {"items": rows[items], "lengths": rows[lengths]}
    module = _BySequence(model, str(data.uid_field), items, lengths, data.max_item_list_len)
    try:
        module(**example)
    except KeyError as error:
        raise ConfigError(
            f"{type(model).__name__} reads a column that a list of items has not: {error.args[0]}"
        ) from error
    return Scoring("sequence", module, example)


class _BySequence(nn.Module):
    model: Any

    def __init__(self, model: nn.Module, user: str, items: str, lengths: str, width: int) -> None:
        super().__init__()
        self.model, self._names, self._width = model, (user, items, lengths), width

    def forward(self, items: Tensor, lengths: Tensor) -> Tensor:
        # A program takes any number of rows, all of the length that the model was made for.
        torch._check(items.shape[1] == self._width)  # type: ignore[no-untyped-call]
        columns = dict(zip(self._names, (torch.zeros_like(lengths), items, lengths), strict=True))
        scores: Tensor = self.model.full_sort_predict(Interaction.of_columns(columns, items.shape[0]))
        return scores.view(items.shape[0], -1)


class _Recalled:
    """What a model remembers between batches, calculated once: in a program it is a constant.

    Args:
        model: The model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._values: dict[str, Any] = {}

    def _remembered(self, calculate: Callable[[], Any]) -> Any:
        name = getattr(calculate, "__name__", repr(calculate))
        if name not in self._values:
            self._values[name] = calculate()
        return self._values[name]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Let the model recall in the block."""
        self._model.__dict__["remembered"] = self._remembered
        try:
            yield
        finally:
            del self._model.__dict__["remembered"]


class _ById(nn.Module):
    model: Any

    def __init__(self, model: nn.Module, user: str) -> None:
        super().__init__()
        self.model, self._user = model, user
        self._recalled = _Recalled(model)

    def forward(self, users: Tensor) -> Tensor:
        rows = Interaction.of_columns({self._user: users}, users.shape[0])
        with self._recalled():
            scores: Tensor = self.model.full_sort_predict(rows)
        return scores.view(users.shape[0], -1)


def _row_scoring(recommender: Recommender, users: Tensor) -> Scoring:
    data, model = recommender.dataset, recommender.model
    rows = data.join(
        Interaction({str(data.uid_field): users, str(data.iid_field): torch.arange(1, len(users) + 1).to(users.device)})
    )
    names = [one for one in getattr(model, "field_names", rows.columns) if one in rows]
    lacking = [one for one in getattr(model, "field_names", ()) if one not in rows]
    if lacking:
        raise ConfigError(
            f"{type(model).__name__} scores rows by {lacking[0]!r}, which only an interaction has; leave the field out "
            "of load_col to export it"
        )
    return Scoring("rows", _ByRow(model, names), {name: rows[name] for name in names})


class _ByRow(nn.Module):
    model: Any

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self._names = model, names

    def forward(self, **columns: Tensor) -> Tensor:
        given = {name: columns[name] for name in self._names}
        scores: Tensor = self.model.predict(Interaction.of_columns(given, given[self._names[0]].shape[0]))
        return scores


def _history_scoring(recommender: Recommender, users: Tensor) -> Scoring | None:
    """Return how a model scores histories as rows of all items; None if it does not."""
    model, data = recommender.model, recommender.dataset
    fold_in = FoldIn(model, data, recommender.device, recommender.user_rows, recommender.known_users())
    try:
        scorer = fold_in.scorer(recommender.vectors)
    except ConfigError:
        return None
    if isinstance(scorer, FoldedVectors):
        return None
    history = torch.zeros(len(users), len(recommender.items), device=recommender.device)
    for row, past in zip(history, fold_in.histories_of(users), strict=True):
        row[past] = 1
    wanted = recommender.score_users(users)
    for module in (_linear(recommender, scorer), _ByHistory(model, str(data.uid_field))):
        # Whether a program has all that the model goes by is tried; what the model remembers is then calculated, too.
        if module is not None and is_same(module(history), wanted):
            return Scoring("history", module, {"history": history})
    raise ConfigError(
        f"{type(model).__name__} has something of its own for each of its users, which is in no history; a program of "
        "histories would give them other scores"
    )


def _linear(recommender: Recommender, scorer: HistoryScorer) -> nn.Module | None:
    """Return what adds up the scores that each item of a history gives, if the model is fitted by a closed form."""
    model, number = recommender.model, len(recommender.items)
    if not isinstance(model, FittedRecommender):
        return None
    if number**2 > MOST_CELLS:
        raise ConfigError(
            f"{type(model).__name__} would be a matrix of {number:,} x {number:,} numbers in a program; at most "
            f"{MOST_CELLS:,} are exported"
        )
    items = torch.arange(1, number, device=recommender.device)
    alone = [scorer.scores(list(some.unsqueeze(1)), torch.zeros_like(some)) for some in torch.split(items, 256)]
    return _Similarities(torch.cat([torch.zeros_like(alone[0][:1]), *alone]))


class _Similarities(nn.Module):
    """Adds up the similarities of the items of a history."""

    similarities: Tensor

    def __init__(self, similarities: Tensor) -> None:
        super().__init__()
        self.register_buffer("similarities", similarities.detach().clone())

    def forward(self, history: Tensor) -> Tensor:
        return history @ self.similarities


class _GivenRows(Constants):
    """Histories that are rows already, in the place of those that a model has."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__(items=rows[:, 0].long())
        self._rows = [rows]
        self.n_users, self.n_items = rows.shape

    def rows(self, users: Tensor, *, distinct: bool = False) -> Tensor:
        return self._rows[0]


class _ByHistory(nn.Module):
    """Scores rows by a model whose user is a history."""

    model: Any

    def __init__(self, model: Any, user: str) -> None:
        super().__init__()
        self.model, self._user = model, user
        self._recalled = _Recalled(model)

    def forward(self, history: Tensor) -> Tensor:
        given = _GivenRows(history)
        own = getattr(self.model, "score_histories", None)
        if own is not None:
            with self._recalled():
                scores: Tensor = own(given)
            return scores.view(history.shape[0], -1)
        before = self.model._modules["histories"]
        self.model._modules["histories"] = given
        try:
            users = torch.zeros_like(history[:, 0], dtype=torch.int64)
            scores = self.model.full_sort_predict(Interaction.of_columns({self._user: users}, history.shape[0]))
        finally:
            self.model._modules["histories"] = before
        return scores.view(history.shape[0], -1)


def describe(example: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """Return, of each input, its type and its shape but for the number of rows."""
    return {name: [str(one.dtype).removeprefix("torch."), list(one.shape[1:])] for name, one in example.items()}
