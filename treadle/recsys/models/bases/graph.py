"""What models have in common whose score is the product of two nodes, over all layers of a graph."""

from abc import abstractmethod

from torch import Tensor, nn

from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import AbstractRecommender, GeneralRecommender
from treadle.recsys.models.graph import Graph
from treadle.recsys.models.layers.functional import all_dots, dot

# Scores of models whose embeddings are passed along a graph, all of them at once


class PropagatedScores(AbstractRecommender):
    """A score is the inner product of a user and an item, which `forward` returns; batches of an evaluation share them.

    A model whose `forward` returns something else says with `scored_vectors` what the vectors are.

    Attributes:
        USER_ID: The column of users.
        ITEM_ID: The column of items.
    """

    USER_ID: str
    ITEM_ID: str

    @abstractmethod
    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings of all users, and those of all items."""

    def scored_vectors(self) -> tuple[Tensor, Tensor]:
        """Return the vectors of all users, and those of all items."""
        return self.forward()

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the score of each row, `[rows]`."""
        users, items = self.remembered(self.scored_vectors)
        return dot(users[interaction[self.USER_ID]], items[interaction[self.ITEM_ID]])

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items, `[rows * n_items]`."""
        users, items = self.remembered(self.scored_vectors)
        return all_dots(users[interaction[self.USER_ID]], items)


class LayeredGraphRecommender(PropagatedScores, GeneralRecommender):
    """The parent of models that put the outputs of all layers side by side; a model says what `embeddings` are.

    Attributes:
        graph: The graph of users and items.
        mf_loss: The loss of a pair of scores.
        reg_loss: The penalty on the embeddings of a batch.
        reg_weight: How much it counts.
        require_pow: Whether it is of squares.
    """

    input_type = InputType.PAIRWISE
    graph: Graph
    mf_loss: nn.Module
    reg_loss: nn.Module
    reg_weight: float
    require_pow: bool

    @abstractmethod
    def embeddings(self) -> Tensor:
        """Return the outputs of all layers side by side, for all users and items, in one tensor."""

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings of users, and those of items."""
        return self.graph.split(self.embeddings())

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the pairwise loss, and the penalty on the embeddings."""
        negative = interaction[self.NEG_ITEM_ID]
        nodes = self.graph.nodes(interaction[self.USER_ID], interaction[self.ITEM_ID], negative)
        users, positives, negatives = gather_triples(self.embeddings(), nodes, negative)
        loss: Tensor = self.mf_loss(dot(users, positives), dot(users, negatives))
        penalty: Tensor = self.reg_loss(users, positives, negatives, require_pow=self.require_pow)
        return loss + self.reg_weight * penalty


def gather_triples(embeddings: Tensor, nodes: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the embeddings of the users, positives and negatives of a batch.

    Args:
        embeddings: Those of all nodes.
        nodes: The nodes of the batch, as `Graph.nodes` returns them.
        negative: The negatives, `[rows]` or `[rows, n]`.
    """
    # One gather for all three, and not by indexing, whose gradient a GPU sorts: that takes three times as long.
    found = embeddings.index_select(0, nodes)
    rows = negative.shape[0]
    # Going back, parts of a split are put together; slices would each be filled up with zeros, and added.
    users, positives, negatives = found.split_with_sizes([rows, rows, negative.numel()])
    return users, positives, negatives.view(*negative.shape, -1)
