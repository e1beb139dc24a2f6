"""Factorisation machine."""

from torch import Tensor

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.bases.context import ClickRecommender
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.interactions import BaseFactorizationMachine


class FM(ClickRecommender):
    """A linear part, and the inner product of the embeddings of each two fields.

    Rendle, "Factorization machines", 2010.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.fm = BaseFactorizationMachine(reduce_sum=True)
        self.apply(xavier_normal_initialization)

    def field_inputs(self) -> dict[str, tuple[int, ...]]:
        """Return which weights go by the order of the fields."""
        return {}

    def forward(self, interaction: Interaction) -> Tensor:
        """Return the logit of each row, `[rows]`."""
        pairs: Tensor = self.fm(self.concat_embed_input_fields(interaction))
        logits: Tensor = (self.first_order_linear(interaction) + pairs).squeeze(-1)
        return logits
