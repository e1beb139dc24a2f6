"""DeepFM."""

from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.bases.context import ClickRecommender
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.interactions import BaseFactorizationMachine
from treadle.recsys.models.layers.mlp import MLPLayers
from treadle.recsys.models.settings import share, sizes


class DeepFM(ClickRecommender):
    """A factorisation machine and a network that share their embeddings.

    Guo, Tang, Ye, Li and He, "DeepFM: a factorization-machine based neural network for CTR prediction", 2017.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.mlp_hidden_size, self.dropout_prob = sizes(config, "mlp_hidden_size"), share(config, "dropout_prob")
        self.fm = BaseFactorizationMachine(reduce_sum=True)
        width = self.num_feature_field * self.embedding_size
        self.mlp_layers = MLPLayers([width, *self.mlp_hidden_size], self.dropout_prob)
        self.deep_predict_layer = nn.Linear(self.mlp_hidden_size[-1], 1)
        self.apply(xavier_normal_initialization)

    def field_inputs(self) -> dict[str, tuple[int, ...]]:
        """Return which weights go by the order of the fields."""
        return {"mlp_layers.mlp_layers.1.weight": (1,)}

    def forward(self, interaction: Interaction) -> Tensor:
        """Return the logit of each row, `[rows]`."""
        embedded = self.concat_embed_input_fields(interaction)
        deep = self.deep_predict_layer(self.mlp_layers(embedded.flatten(1)))
        logits: Tensor = (self.first_order_linear(interaction) + self.fm(embedded) + deep).squeeze(-1)
        return logits
