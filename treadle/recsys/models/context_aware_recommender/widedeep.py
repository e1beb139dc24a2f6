"""Wide & Deep."""

from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.bases.context import ClickRecommender
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.mlp import MLPLayers
from treadle.recsys.models.settings import share, sizes


class WideDeep(ClickRecommender):
    """A linear part, which remembers, and a network over the embeddings, which generalises.

    Cheng et al., "Wide & deep learning for recommender systems", 2016.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.mlp_hidden_size, self.dropout_prob = sizes(config, "mlp_hidden_size"), share(config, "dropout_prob")
        width = self.num_feature_field * self.embedding_size
        self.mlp_layers = MLPLayers([width, *self.mlp_hidden_size], self.dropout_prob)
        self.deep_predict_layer = nn.Linear(self.mlp_hidden_size[-1], 1)
        self.apply(xavier_normal_initialization)

    def field_inputs(self) -> dict[str, tuple[int, ...]]:
        """Return which weights go by the order of the fields."""
        return {"mlp_layers.mlp_layers.1.weight": (1,)}

    def forward(self, interaction: Interaction) -> Tensor:
        """Return the logit of each row, `[rows]`."""
        deep = self.deep_predict_layer(self.mlp_layers(self.features(interaction)))
        logits: Tensor = (self.first_order_linear(interaction) + deep).squeeze(-1)
        return logits
