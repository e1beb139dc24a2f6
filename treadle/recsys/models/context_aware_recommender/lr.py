"""Logistic regression."""

from torch import Tensor

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.bases.context import ClickRecommender
from treadle.recsys.models.init import xavier_normal_initialization


class LR(ClickRecommender):
    """A weight for each value of each field, and a bias; their sum is the logit.

    Richardson, Dominowska and Ragno, "Predicting clicks: estimating the click-through rate for new ads", 2007.
    """

    no_vectors = "it has a single weight for each user and item"

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.apply(xavier_normal_initialization)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.startswith("first_order_linear."))

    def user_vectors(self) -> None:
        """Return nothing: the embeddings that every model of fields has are no part of this one."""

    item_vectors = user_vectors

    def field_inputs(self) -> dict[str, tuple[int, ...]]:
        """Return which weights go by the order of the fields."""
        return {}

    def forward(self, interaction: Interaction) -> Tensor:
        """Return the logit of each row, `[rows]`."""
        logits: Tensor = self.first_order_linear(interaction).squeeze(-1)
        return logits
