"""Scores of models whose embeddings are passed along a graph, all of them at once."""

from abc import abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor

from treadle.recsys.models.abstract_recommender import AbstractRecommender
from treadle.recsys.models.scoring import all_dots, dot

if TYPE_CHECKING:
    from treadle.recsys.interaction import Interaction


class PropagatedScores(AbstractRecommender):
    """A score is the inner product of a user and an item, which `forward` returns; batches of an evaluation share them.

    Attributes:
        USER_ID: The column of users.
        ITEM_ID: The column of items.
    """

    USER_ID: str
    ITEM_ID: str

    @abstractmethod
    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings of all users, and those of all items."""

    def predict(self, interaction: "Interaction") -> Tensor:
        """Return the score of each row, `[rows]`."""
        users, items = self.remembered(self.forward)
        return dot(users[interaction[self.USER_ID]], items[interaction[self.ITEM_ID]])

    def full_sort_predict(self, interaction: "Interaction") -> Tensor:
        """Return the scores of all items, `[rows * n_items]`."""
        users, items = self.remembered(self.forward)
        return all_dots(users[interaction[self.USER_ID]], items)
