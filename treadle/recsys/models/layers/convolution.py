"""Layers of convolutions."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.recsys.models.layers.mlp import activation_layer


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
