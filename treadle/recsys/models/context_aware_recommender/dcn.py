"""Deep & Cross network."""

import math

import torch
from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.bases.context import ClickRecommender
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.mlp import MLPLayers
from treadle.recsys.models.loss import RegLoss
from treadle.recsys.models.settings import number, share, sizes, whole


class DCN(ClickRecommender):
    """A network over the embeddings, and beside it layers in which they are crossed.

    Wang, Fu, Fu and Wang, "Deep & cross network for ad click predictions", 2017.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.mlp_hidden_size, self.dropout_prob = sizes(config, "mlp_hidden_size"), share(config, "dropout_prob")
        self.cross_layer_num, self.reg_weight = whole(config, "cross_layer_num"), number(config, "reg_weight")
        width = self.num_feature_field * self.embedding_size
        deviation = math.sqrt(2 / (width + 1))
        layers = range(self.cross_layer_num)
        self.cross_layer_w = nn.ParameterList([torch.randn(width) * deviation for _ in layers])
        self.cross_layer_b = nn.ParameterList([torch.zeros(width) for _ in layers])
        self.mlp_layers = MLPLayers([width, *self.mlp_hidden_size], self.dropout_prob, bn=True)
        self.predict_layer = nn.Linear(width + self.mlp_hidden_size[-1], 1)
        self.reg_loss = RegLoss()
        self.apply(xavier_normal_initialization)
        self.first_order_linear.requires_grad_(False)

    def cross_network(self, x_0: Tensor) -> Tensor:
        """Return features that are crossed once in each layer: `x_0 (x' w) + b + x`.

        Args:
            x_0: The features, `[rows, size]`.
        """
        crossed = x_0
        for weight, bias in zip(self.cross_layer_w, self.cross_layer_b, strict=True):
            crossed = x_0 * torch.matmul(crossed, weight).unsqueeze(1) + bias + crossed
        return crossed

    def field_inputs(self) -> dict[str, tuple[int, ...]]:
        """Return which weights go by the order of the fields."""
        return {
            "cross_layer_?.*": (0,),
            "mlp_layers.mlp_layers.1.weight": (1,),
            "predict_layer.weight": (1,),
        }

    def forward(self, interaction: Interaction) -> Tensor:
        """Return the logit of each row, `[rows]`."""
        features = self.features(interaction)
        both = torch.cat([self.cross_network(features), self.mlp_layers(features)], dim=-1)
        logits: Tensor = self.predict_layer(both).squeeze(-1)
        return logits

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the cross-entropy of the labels, and the penalty on the weights that cross."""
        penalty: Tensor = self.reg_loss(self.cross_layer_w)
        return super().calculate_loss(interaction) + self.reg_weight * penalty
