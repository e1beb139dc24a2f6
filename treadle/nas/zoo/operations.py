"""The operations that ready-made spaces choose from."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Zero(nn.Module):
    """Returns zeros; a trainer that weighs candidates need not call it.

    Args:
        stride: By how much the picture shrinks.
        out_channels: How many channels the zeros have; None as many as the input.
    """

    is_zero = True

    def __init__(self, stride: int = 1, out_channels: int | None = None) -> None:
        super().__init__()
        self.stride, self.out_channels = stride, out_channels

    def forward(self, inputs: Tensor) -> Tensor:
        """Return zeros."""
        part = inputs[:, :, :: self.stride, :: self.stride]
        channels = part.shape[1] if self.out_channels is None else self.out_channels
        return part.new_zeros(part.shape[0], channels, *part.shape[2:])


class ReluConvBn(nn.Sequential):
    """A convolution after a ReLU, and a batch norm."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int = 1, stride: int = 1, *, affine: bool = True
    ) -> None:
        super().__init__(
            nn.ReLU(),
            nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, bias=False),
            nn.BatchNorm2d(out_channels, affine=affine),
        )


class DilatedConv(nn.Sequential):
    """A depthwise convolution, with holes in it if dilated, and one of points."""

    def __init__(self, channels: int, kernel_size: int, stride: int, dilation: int, *, affine: bool = True) -> None:
        padding = dilation * (kernel_size - 1) // 2
        super().__init__(
            nn.ReLU(),
            nn.Conv2d(channels, channels, kernel_size, stride, padding, dilation, channels, bias=False),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels, affine=affine),
        )


class SeparableConv(nn.Sequential):
    """Two depthwise convolutions, each with one of points behind it."""

    def __init__(self, channels: int, kernel_size: int, stride: int, *, affine: bool = True) -> None:
        super().__init__(
            DilatedConv(channels, kernel_size, stride, 1, affine=affine),
            DilatedConv(channels, kernel_size, 1, 1, affine=affine),
        )


class PoolBn(nn.Sequential):
    """A pooling, and a batch norm without weights of its own.

    Args:
        kind: "max" or "average".
        channels: How many channels there are.
        stride: By how much the picture shrinks.
    """

    def __init__(self, kind: str, channels: int, stride: int) -> None:
        pools = {"max": nn.MaxPool2d(3, stride, 1), "average": nn.AvgPool2d(3, stride, 1, count_include_pad=False)}
        super().__init__(pools[kind], nn.BatchNorm2d(channels, affine=False))


class FactorizedReduce(nn.Module):
    """Halves the picture by two convolutions of points, the second one off by a point."""

    def __init__(self, in_channels: int, out_channels: int, *, affine: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_channels, out_channels // 2, 1, stride=2, bias=False)
        self.second = nn.Conv2d(in_channels, out_channels - out_channels // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(out_channels, affine=affine)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the picture at half its size."""
        active = F.relu(inputs)
        # Moved by a point, with a rim of zeros where the picture has an odd number of them.
        moved = F.pad(active, (0, 1, 0, 1))[:, :, 1:, 1:]
        output: Tensor = self.norm(torch.cat([self.first(active), self.second(moved)], dim=1))
        return output


class DropPath(nn.Module):
    """Leaves whole samples out at random while training, and makes up for it by scaling the others.

    Args:
        probability: How likely a sample is left out.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `inputs`, with zeros for the samples that are left out."""
        if not self.training or not self.probability:
            return inputs
        kept = 1.0 - self.probability
        shape = (len(inputs), *[1] * (inputs.dim() - 1))
        return inputs * torch.empty(shape, dtype=inputs.dtype, device=inputs.device).bernoulli_(kept).div_(kept)


class MobileConv(nn.Module):
    """A convolution of points that widens, a depthwise one, and one of points that narrows; with a shortcut if it can.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Of the depthwise convolution.
        stride: By how much the picture shrinks.
        expansion: How many times as wide it is in between.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = in_channels * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [nn.Conv2d(in_channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()]
        layers += [
            nn.Conv2d(inner, inner, kernel_size, stride, kernel_size // 2, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        ]
        self.layers = nn.Sequential(*layers)
        self.shortcut = stride == 1 and in_channels == out_channels

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the features."""
        output: Tensor = self.layers(inputs)
        return inputs + output if self.shortcut else output
