"""Deep & Cross network, the second version."""

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
from treadle.recsys.models.settings import choice, number, share, sizes, whole


class DCNv2(ClickRecommender):
    """A network over the embeddings, and layers in which they are crossed by matrices.

    Wang, Shivanna, Cheng, Jain, Lin, Hong and Chi, "DCN V2: improved deep & cross network and practical lessons for
    web-scale learning to rank systems", 2021. `structure` says whether the network stands beside these layers
    ("parallel") or behind them ("stacked"); with `mixed`, the matrices are mixtures of experts of low rank.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.mixed = bool(config["mixed"])
        self.structure = choice(config, "structure", ("parallel", "stacked"))
        self.cross_layer_num, self.reg_weight = whole(config, "cross_layer_num"), number(config, "reg_weight")
        self.mlp_hidden_size, self.dropout_prob = sizes(config, "mlp_hidden_size"), share(config, "dropout_prob")
        width = self.in_feature_num = self.num_feature_field * self.embedding_size
        layers = range(self.cross_layer_num)
        if self.mixed:
            self.expert_num, self.low_rank = whole(config, "expert_num"), whole(config, "low_rank")
            long, square = (self.expert_num, width, self.low_rank), (self.expert_num, self.low_rank, self.low_rank)
            self.cross_layer_u = nn.ParameterList([_drawn(long) for _ in layers])
            self.cross_layer_v = nn.ParameterList([_drawn(long) for _ in layers])
            self.cross_layer_c = nn.ParameterList([_drawn(square) for _ in layers])
            self.gating = nn.ModuleList([nn.Linear(width, 1) for _ in range(self.expert_num)])
        else:
            self.cross_layer_w = nn.ParameterList([_drawn((width, width)) for _ in layers])
        self.bias = nn.ParameterList([torch.zeros(width, 1) for _ in layers])
        self.mlp_layers = MLPLayers([width, *self.mlp_hidden_size], self.dropout_prob, bn=True)
        beside = width if self.structure == "parallel" else 0
        self.predict_layer = nn.Linear(beside + self.mlp_hidden_size[-1], 1)
        self.reg_loss = RegLoss()
        self.apply(xavier_normal_initialization)
        self.first_order_linear.requires_grad_(False)

    def cross_network(self, x_0: Tensor) -> Tensor:
        """Return features that are crossed once in each layer: `x_0 * (W x + b) + x`.

        Args:
            x_0: The features, `[rows, size]`.
        """
        crossed = x_0
        for weight, bias in zip(self.cross_layer_w, self.bias, strict=True):
            crossed = x_0 * (torch.matmul(crossed, weight.T) + bias.squeeze(1)) + crossed
        return crossed

    def cross_network_mix(self, x_0: Tensor) -> Tensor:
        """Return features that several experts cross in each layer, and that gates mix.

        An expert is `x_0 * (U tanh(C tanh(V' x)) + b)`.

        Args:
            x_0: The features, `[rows, size]`.
        """
        crossed = x_0
        for up, core, down, bias in zip(
            self.cross_layer_u, self.cross_layer_c, self.cross_layer_v, self.bias, strict=True
        ):
            small = torch.matmul(crossed, down).tanh()
            small = torch.matmul(small, core.transpose(1, 2)).tanh()
            # [experts, rows, size]
            experts = x_0 * (torch.matmul(small, up.transpose(1, 2)) + bias.squeeze(1))
            gates = torch.stack([gate(crossed) for gate in self.gating]).softmax(dim=0)
            crossed = (experts * gates).sum(dim=0) + crossed
        return crossed

    def field_inputs(self) -> dict[str, tuple[int, ...]]:
        """Return which weights go by the order of the fields."""
        found: dict[str, tuple[int, ...]] = {
            "cross_layer_w.*": (0, 1),
            "cross_layer_[uv].*": (1,),
            "gating.*.weight": (1,),
            "bias.*": (0,),
            "mlp_layers.mlp_layers.1.weight": (1,),
        }
        return {**found, "predict_layer.weight": (1,)} if self.structure == "parallel" else found

    def forward(self, interaction: Interaction) -> Tensor:
        """Return the logit of each row, `[rows]`."""
        features = self.features(interaction)
        crossed = self.cross_network_mix(features) if self.mixed else self.cross_network(features)
        if self.structure == "parallel":
            output = torch.cat([crossed, self.mlp_layers(features)], dim=-1)
        else:
            output = self.mlp_layers(crossed)
        logits: Tensor = self.predict_layer(output).squeeze(-1)
        return logits

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the cross-entropy of the labels, and the penalty on the matrices."""
        if self.mixed:
            matrices = [*self.cross_layer_c, *self.cross_layer_v, *self.cross_layer_u]
        else:
            matrices = [*self.cross_layer_w]
        penalty: Tensor = self.reg_loss(matrices)
        return super().calculate_loss(interaction) + self.reg_weight * penalty


def _drawn(shape: tuple[int, ...]) -> Tensor:
    """Return matrices drawn from Glorot's normal distribution."""
    return torch.randn(shape) * math.sqrt(2 / (shape[-1] + shape[-2]))
