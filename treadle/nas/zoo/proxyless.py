"""The space of ProxylessNAS: a mobile network whose depths, kernels and widths inside of blocks are to be decided."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from treadle.nas.space.layer_choice import LayerChoice
from treadle.nas.space.repeat import Repeat
from treadle.nas.zoo.operations import MobileConv

KERNELS, EXPANSIONS = (3, 5, 7), (3, 6)
WIDTHS = (32, 16, 24, 40, 80, 96, 192, 320, 1280)
STRIDES = (2, 2, 2, 1, 2, 1)
DEPTHS = ((1, 4), (1, 4), (1, 4), (1, 4), (1, 4), (1, 1))


class ProxylessSpace(nn.Module):
    """Pictures through six stages of mobile blocks: 26 decisions.

    For stage s and block b, `stage<s>/<b>` is "k<kernel>e<expansion>" of the block; `stage<s>/depth` how many blocks
    the stage has.

    Args:
        num_labels: How many classes there are.
        in_channels: Channels of a picture.
        width: What the channels of every stage are multiplied by.
        strides: By how much the picture shrinks in the first convolution and in each of the first five stages; for
            small pictures use smaller ones.
        dropout: How likely a feature is left out before the classifier.
    """

    def __init__(
        self,
        num_labels: int = 1000,
        *,
        in_channels: int = 3,
        width: float = 1.0,
        strides: Sequence[int] = STRIDES,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        stem, first, *stages, last = [max(8, int(channels * width + 4) // 8 * 8) for channels in WIDTHS]
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, stem, 3, strides[0], 1, bias=False), nn.BatchNorm2d(stem), nn.ReLU6()
        )
        self.first = MobileConv(stem, first, 3, 1, 1)
        self.stages = nn.Sequential()
        channels, steps = first, (*strides[1:], 1)
        for number, (out, depth, stride) in enumerate(zip(stages, DEPTHS, steps, strict=True), start=1):
            label = f"stage{number}"
            make = _maker(label, channels, out, stride)
            self.stages.append(Repeat(make, depth, f"{label}/depth") if depth != (1, 1) else make(0))
            channels = out
        self.last = nn.Sequential(nn.Conv2d(channels, last, 1, bias=False), nn.BatchNorm2d(last), nn.ReLU6())
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout))
        self.classifier = nn.Linear(last, num_labels)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a score for each class."""
        features = self.last(self.stages(self.first(self.stem(inputs))))
        scores: Tensor = self.classifier(self.pool(features))
        return scores


def _maker(label: str, in_channels: int, out_channels: int, stride: int) -> Callable[[int], nn.Module]:
    def make(number: int) -> nn.Module:
        channels, step = (out_channels, 1) if number else (in_channels, stride)
        candidates = {
            f"k{kernel}e{expansion}": MobileConv(channels, out_channels, kernel, step, expansion)
            for kernel in KERNELS
            for expansion in EXPANSIONS
        }
        return LayerChoice(candidates, f"{label}/{number}")

    return make
