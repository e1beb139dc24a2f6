"""Lists of items for queries: who is scored by what, what is left out, and why an item is there."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.data.sampling.user_items import UserItems
from treadle.recsys.data.tables.id_map import Vocabulary
from treadle.recsys.evaluation import NO_ITEM, recommend_items
from treadle.recsys.evaluation.scoring import top_items, users_at_once
from treadle.recsys.serve.queries import Asked, Catalogue, Query, check, queries_of, tokens_of
from treadle.recsys.serve.tables import Recommendations

Similarities = Callable[[Tensor], Tensor]
"""Takes ids of items and returns how similar each is to all, `[items, n_items]`."""


class Answers(ABC):
    """What answers queries, whatever gives the scores.

    Args:
        users: The tokens of users.
        items: The tokens of items.
        catalogue: The items, and what is known of them.
        repeatable: Whether a user may be recommended again what the user has.
        device: Where scores are.
    """

    def __init__(
        self, users: Vocabulary, items: Vocabulary, catalogue: Catalogue, *, repeatable: bool, device: torch.device
    ) -> None:
        self.users, self.items, self.catalogue = users, items, catalogue
        self.repeatable, self.device = repeatable, device

    # What gives the scores ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def known(self) -> UserItems:
        """What each user has in any part of the data."""

    @property
    @abstractmethod
    def popularity(self) -> Tensor:
        """How often each item was used in training, `[n_items]`."""

    @abstractmethod
    def looking(self) -> AbstractContextManager[None]:
        """Return a block in which scores may be asked for."""

    @abstractmethod
    def can_score(self, users: Tensor) -> Tensor:
        """Return of which users the model knows something."""

    @abstractmethod
    def score_users(self, users: Tensor) -> Tensor:
        """Return the scores of all items for users by what the model knows of them."""

    @abstractmethod
    def score_histories(self, histories: Sequence[Tensor], users: Tensor) -> Tensor:
        """Return the scores of all items for histories.

        Raises:
            ConfigError: The model does not go by them.
        """

    @abstractmethod
    def similarities(self) -> Similarities:
        """Return what compares items.

        Raises:
            ConfigError: The model does not.
        """

    # Items for users ----------------------------------------------------------------------------------------

    def recommend(
        self,
        users: Any = None,
        k: int = 10,
        *,
        history: Any = None,
        exclude: Any = None,
        filter: Any = None,
        exclude_seen: bool | None = None,
        explain: int = 0,
        unknown: str = "refuse",
    ) -> Recommendations:
        """Return the best items for some users, or for histories.

        With a history a list goes by it, whether or not the data has the user. Without one, a user that the model was
        not trained on gets what is most popular in training, and `cold` says so. Of equal scores the item that came
        first in the data comes first.

        Args:
            users: The user, or several, by the tokens that the data has; unknown ones may be among them. None with
                histories of people who have no name.
            k: How many items each gets.
            history: What each did, oldest first, by tokens of items: a list for one, a list of lists or a dict by user
                for several; None in the place of a list for what the data has of that user.
            exclude: Items that are not to be recommended.
            filter: What may be recommended: a list of items; or, by the names of fields of items, a value, several
                of which an item has one, or a range `{"min": ..., "max": ...}` of numbers.
            exclude_seen: Whether items of the history, and those that a user has in any part of the data, are left
                out; by default unless the settings say `repeatable`.
            explain: How many items of the history to name with each item, those most like it.
            unknown: "refuse" items of a history that the data does not have, or "skip" them.

        Raises:
            ConfigError: There are not so many items, an argument is of another type, or the model cannot do it.
            DataError: The data does not have an item.
        """
        shared = {
            "exclude": exclude,
            "filter": filter,
            "exclude_seen": exclude_seen,
            "explain": explain,
            "unknown": unknown,
        }
        return self.answer(self.check(queries_of(users, history, **shared)), k)

    def recommend_all(self, k: int = 10, *, exclude_seen: bool | None = None) -> Recommendations:
        """Return the best items for every user of the data."""
        ids = torch.arange(1, len(self.users), device=self.device)
        hides = not self.repeatable if exclude_seen is None else exclude_seen
        items, scores, cold = self.best_items(ids, k, exclude_seen=hides)
        return self.table(self.users.field, self.users.tokens[1:].tolist(), items, scores, cold)

    def best_items(self, users: Tensor, k: int, *, exclude_seen: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best items of some users by what the data has of them, and which users the model does not know.

        Args:
            users: Their ids.
            k: How many items each gets.
            exclude_seen: Whether what they have is left out.

        Raises:
            ConfigError: There are not so many items.
        """
        none = torch.empty(0, dtype=torch.int64, device=self.device)
        nothing = UserItems(none, none, num_users=len(self.users), num_items=len(self.items))
        cold = ~self.can_score(users)

        def scored(some: Tensor) -> Tensor:
            known = self.can_score(some)
            if bool(known.all()):
                return self.score_users(some)
            scores = self.popularity.float().repeat(len(some), 1)
            if bool(known.any()):
                scores[known] = self.score_users(some[known]).float()
            return scores

        with self.looking():
            items, scores = recommend_items(scored, users, k, seen=self.known if exclude_seen else nothing)
        return items, scores, cold

    def check(self, queries: Sequence[Query], first: int = 1) -> list[Asked]:
        """Return queries by ids.

        Args:
            queries: The queries.
            first: The number of the first, by which lists without a user are called.

        Raises:
            ConfigError: Something is of another type, or too long.
            DataError: Something is not in the data.
        """
        hides = not self.repeatable
        return [check(one, first + place, self.users, self.catalogue, hides=hides) for place, one in enumerate(queries)]

    def answer(self, asked: Sequence[Asked], k: int) -> Recommendations:
        """Return a list for each query.

        Raises:
            ConfigError: There are not so many items, or the model cannot do it.
        """
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
            raise ConfigError(f"k={k!r} is a {type(k).__name__}, and no number of items")
        ids = torch.tensor([one.user for one in asked], dtype=torch.int64, device=self.device)
        given = torch.tensor([one.history is not None for one in asked], dtype=torch.bool, device=self.device)
        cold = ~(given | self.can_score(ids))
        with self.looking():
            rows = torch.arange(len(asked), device=self.device)
            items, scores = recommend_items(
                lambda some: self._scored(some, asked, ids, cold), rows, int(k), seen=self.hidden(asked, ids)
            )
            because = self._because(asked, items)
        return self.table(self.users.field, [one.name for one in asked], items, scores, cold, because)

    def _scored(self, rows: Tensor, asked: Sequence[Asked], ids: Tensor, cold: Tensor) -> Tensor:
        """Return the scores of all items for some queries, each by what there is to go by."""
        places: list[int] = rows.tolist()
        histories = {place: one for place in places if (one := asked[place].history) is not None}
        by_history = torch.tensor([place in histories for place in places], dtype=torch.bool, device=self.device)
        popular = cold[rows]
        if not histories and not bool(popular.any()):
            scores = self.score_users(ids[rows])
        else:
            scores = torch.empty(len(rows), len(self.items), device=self.device)
            if histories:
                scores[by_history] = self.score_histories(list(histories.values()), ids[rows[by_history]]).float()
            scores[popular] = self.popularity.float()
            known = ~(by_history | popular)
            if bool(known.any()):
                scores[known] = self.score_users(ids[rows[known]]).float()
        return self._allowed(scores, [asked[place] for place in places])

    def _allowed(self, scores: Tensor, asked: list[Asked]) -> Tensor:
        if all(one.allowed is None for one in asked):
            return scores
        scores = scores.clone()
        for row, one in zip(scores, asked, strict=True):
            if one.allowed is not None:
                row[~one.allowed] = -torch.inf
        return scores

    def hidden(self, asked: Sequence[Asked], ids: Tensor) -> UserItems:
        """Return what is left out of each query's list."""
        hides = torch.tensor([one.hides for one in asked], dtype=torch.bool, device=self.device)
        rows, items = (
            self.known.select(torch.where(hides, ids, 0)) if bool(hides.any()) else (ids.new_empty(0), ids.new_empty(0))
        )
        rows_of, items_of = [rows], [items]
        for place, one in enumerate(asked):
            past = [one.history] if one.hides and one.history is not None else []
            for more in (one.hidden, *past):
                if len(more):
                    rows_of.append(torch.full_like(more, place))
                    items_of.append(more)
        sets = torch.cat(rows_of), torch.cat(items_of)
        return UserItems(*sets, num_users=len(asked), num_items=len(self.items))

    def _because(self, asked: Sequence[Asked], items: Tensor) -> list[list[list[str]]]:
        """Return, for each item of each list, the items of the history that are most like it."""
        if not any(one.explain for one in asked):
            return []
        compare = self.similarities()
        return [self._reasons(compare, one, row) for one, row in zip(asked, items, strict=True)]

    def _reasons(self, compare: Similarities, one: Asked, items: Tensor) -> list[list[str]]:
        past = (
            self.known.select(torch.tensor([one.user], device=self.device))[1] if one.history is None else one.history
        )
        past, found = torch.unique(past), items[items != NO_ITEM]
        if not one.explain or not len(past) or not len(found):
            return [[] for _ in range(len(items))]
        likeness = compare(found)[:, past]
        best = likeness.topk(min(one.explain, len(past)), dim=1)
        tokens = self.items.tokens
        named = [
            [str(tokens[past[place]]) for place, value in zip(places, values, strict=True) if value > 0]
            for places, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        return named + [[] for _ in range(len(items) - len(named))]

    def table(
        self,
        of: str,
        queries: list[str],
        items: Tensor,
        scores: Tensor,
        cold: Tensor,
        because: list[list[list[str]]] | None = None,
    ) -> Recommendations:
        """Return lists of items by their tokens.

        Args:
            of: What the lists are for: the name of the field with users, or with items.
            queries: For whom, or for which item, each list is.
            items: The ids of the items, best first, -1 where there are no more.
            scores: Their scores.
            cold: Which lists are what is popular.
            because: The items of the history that are most like each.
        """
        tokens = self.items.tokens
        there = items != NO_ITEM
        names = np.where(there.cpu().numpy(), tokens[items.clamp(min=0).cpu().numpy()], "")
        return Recommendations(
            of, list(queries), names, scores.float().cpu().numpy(), cold.cpu().numpy(), because or []
        )

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
        tokens = tokens_of(item_tokens, "items")
        ids = torch.from_numpy(self.items.ids_of(tokens)).to(self.device)
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 0 < k < len(self.items) - 1:
            raise ConfigError(f"k={k}: an item has {len(self.items) - 2} others; ask for at least one of them")
        pieces = torch.split(ids, users_at_once(len(self.items), self.device))
        with self.looking():
            compare = self.similarities()
            found = [_nearest(compare(some), some, int(k)) for some in pieces]
        items, scores = (torch.cat(parts) for parts in zip(*found, strict=True))
        return self.table(self.items.field, tokens, items, scores, torch.zeros(len(ids), dtype=torch.bool))


def _nearest(similarities: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the items most similar to each of some, itself and padding left out, and how similar they are."""
    scores = similarities.float()
    scores[:, 0] = -torch.inf
    scores.scatter_(1, ids.unsqueeze(1), -torch.inf)
    items, values, _ = top_items(scores, k)
    return items, values
