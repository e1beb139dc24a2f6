"""What models have in common whose score is the product of two nodes, over all layers of a graph."""

from abc import abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor, nn

from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import GeneralRecommender
from treadle.recsys.models.general_recommender.lightgcn import rows_of
from treadle.recsys.models.graph import Graph
from treadle.recsys.models.propagated import PropagatedScores
from treadle.recsys.models.scoring import dot

if TYPE_CHECKING:
    from treadle.recsys.interaction import Interaction


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

    def calculate_loss(self, interaction: "Interaction") -> Tensor:
        """Return the pairwise loss, and the penalty on the embeddings."""
        negative = interaction[self.NEG_ITEM_ID]
        nodes = self.graph.nodes(interaction[self.USER_ID], interaction[self.ITEM_ID], negative)
        users, positives, negatives = rows_of(self.embeddings(), nodes, negative)
        loss: Tensor = self.mf_loss(dot(users, positives), dot(users, negatives))
        penalty: Tensor = self.reg_loss(users, positives, negatives, require_pow=self.require_pow)
        return loss + self.reg_weight * penalty
