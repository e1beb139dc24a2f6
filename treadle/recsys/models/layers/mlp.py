"""Layers of fully connected networks."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.errors import ConfigError, did_you_mean

ACTIVATIONS = ("none", "sigmoid", "tanh", "relu", "leakyrelu", "gelu", "swish", "silu", "dice")


class BatchNorm(nn.BatchNorm1d):
    """A normalisation over the batch that has an answer for a batch of one row, too: the statistics so far.

    The last batch of an epoch, or the share of one of several processes, may be that small.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised `[rows, size]`."""
        if not self.training or input.shape[0] > 1:
            return super().forward(input)
        return functional.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class Dice(nn.Module):
    """An activation that is gated by how its input compares with the batch.

    Zhou et al., "Deep interest network for click-through rate prediction", 2018: with p, the sigmoid of the
    standardised input, the output is `p * x + (1 - p) * alpha * x`.

    Args:
        emb_size: The length of an input.
    """

    def __init__(self, emb_size: int) -> None:
        super().__init__()
        self.normalise = BatchNorm(emb_size, eps=1e-8, affine=False)
        self.alpha = nn.Parameter(torch.zeros(emb_size))

    def forward(self, score: Tensor) -> Tensor:
        """Return the activation of `[..., emb_size]`."""
        gate: Tensor = self.normalise(score.reshape(-1, score.shape[-1])).view_as(score).sigmoid()
        return gate * score + (1 - gate) * self.alpha * score


def activation_layer(activation_name: str | None = "relu", emb_dim: int | None = None) -> nn.Module | None:
    """Return the activation of that name; None for "none".

    >>> activation_layer("relu")
    ReLU()

    Args:
        activation_name: One of `ACTIVATIONS`, in any case.
        emb_dim: The length of its input, which "dice" needs.

    Raises:
        ConfigError: There is none of that name.
    """
    name = "none" if activation_name is None else str(activation_name).lower()
    if name == "dice":
        if emb_dim is None:
            raise ConfigError("the activation 'dice' needs emb_dim, the length of its input")
        return Dice(emb_dim)
    made: dict[str, nn.Module | None] = {
        "none": None,
        "sigmoid": nn.Sigmoid(),
        "tanh": nn.Tanh(),
        "relu": nn.ReLU(),
        "leakyrelu": nn.LeakyReLU(),
        "gelu": nn.GELU(),
        "swish": nn.SiLU(),
        "silu": nn.SiLU(),
    }
    if name not in made:
        near = did_you_mean(name, ACTIVATIONS) or f"; there are {list(ACTIVATIONS)}"
        raise ConfigError(f"there is no activation {activation_name!r}{near}")
    return made[name]


class MLPLayers(nn.Module):
    """Fully connected layers, each with dropout before it, and normalisation and an activation behind it.

    Args:
        layers: The lengths of the input and of each output.
        dropout: The probability to drop a number.
        activation: The activation behind each layer; see `activation_layer`.
        bn: Whether to normalise over the batch, before the activation.
        init_method: "norm" draws weights with a standard deviation of 0.01 and has zero biases; None leaves torch's.
        last_activation: Whether there is an activation behind the last layer.
    """

    def __init__(
        self,
        layers: Sequence[int],
        dropout: float = 0.0,
        activation: str | None = "relu",
        bn: bool = False,
        init_method: str | None = None,
        last_activation: bool = True,
    ) -> None:
        super().__init__()
        self.layers, self.dropout, self.activation = list(layers), dropout, activation
        self.use_bn, self.init_method = bn, init_method
        modules: list[nn.Module] = []
        for place, (size, following) in enumerate(pairwise(layers), start=1):
            modules += [nn.Dropout(p=dropout), nn.Linear(size, following)]
            if bn:
                modules.append(BatchNorm(following))
            shape = activation_layer(activation, following)
            if shape is not None and (last_activation or place < len(layers) - 1):
                modules.append(shape)
        self.mlp_layers = nn.Sequential(*modules)
        if init_method is not None:
            self.apply(self.init_weights)

    def init_weights(self, module: nn.Module) -> None:
        """Draw the weights of a linear layer."""
        if not isinstance(module, nn.Linear):
            return
        if self.init_method == "norm":
            nn.init.normal_(module.weight, 0.0, 0.01)
        nn.init.zeros_(module.bias)

    def forward(self, input_feature: Tensor) -> Tensor:
        """Return the output of the last layer."""
        output: Tensor = self.mlp_layers(input_feature)
        return output


# Layers of convolutions


class CNNLayers(nn.Module):
    """Two-dimensional convolutions, each with an activation behind it.

    Args:
        channels: The channels of the input and of each output.
        kernels: The size of each kernel.
        strides: The stride of each convolution.
        activation: The activation behind each; see `activation_layer`.
        init_method: "norm" draws weights with a standard deviation of 0.01 and has zero biases; None leaves torch's.

    Raises:
        ConfigError: The numbers of channels, kernels and strides do not go together.
    """

    def __init__(
        self,
        channels: Sequence[int],
        kernels: Sequence[Any],
        strides: Sequence[Any],
        activation: str | None = "relu",
        init_method: str | None = None,
    ) -> None:
        super().__init__()
        self.channels, self.kernels, self.strides = list(channels), list(kernels), list(strides)
        self.activation, self.init_method = activation, init_method
        if not len(channels) - 1 == len(kernels) == len(strides):
            raise ConfigError(
                f"{len(channels)} channels make {len(channels) - 1} convolutions, and there are {len(kernels)} kernels "
                f"and {len(strides)} strides"
            )
        modules: list[nn.Module] = []
        for size, following, kernel, stride in zip(channels[:-1], channels[1:], kernels, strides, strict=True):
            modules.append(nn.Conv2d(size, following, kernel, stride=stride))
            shape = activation_layer(activation, following)
            if shape is not None:
                modules.append(shape)
        self.cnn_layers = nn.Sequential(*modules)
        if init_method is not None:
            self.apply(self.init_weights)

    def init_weights(self, module: nn.Module) -> None:
        """Draw the weights of a convolution."""
        if not isinstance(module, nn.Conv2d):
            return
        if self.init_method == "norm":
            nn.init.normal_(module.weight, 0.0, 0.01)
        if module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, input_feature: Tensor) -> Tensor:
        """Return the output of the last layer."""
        output: Tensor = self.cnn_layers(input_feature)
        return output
