"""The space of NAS-Bench-201: one cell of six operations, in three stages."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.nas.space.cell import NasBench201Cell
from treadle.nas.zoo.operations import ReluConvBn, Zero

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
STAGES = 3
LABEL = "cell"


class NasBench201Space(nn.Module):
    """Pictures through three stages of equal cells, whose operations are to be decided: 15,625 networks.

    An architecture has `cell/<i>_<j>` for the operation between state j and state i.

    Args:
        width: Channels of the first stage; each of the others has twice as many.
        num_cells: How many cells a stage has.
        num_labels: How many classes there are.
        in_channels: Channels of a picture.
        affine: Whether batch norms in cells have weights.
    """

    def __init__(
        self,
        width: int = 16,
        num_cells: int = 5,
        num_labels: int = 10,
        *,
        in_channels: int = 3,
        affine: bool = True,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(in_channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        makers: dict[str, Callable[[int, int], nn.Module]] = {name: _maker(name, affine) for name in OPERATIONS}
        layers: list[nn.Module] = []
        for stage in range(STAGES):
            if stage:
                layers.append(Halving(width, 2 * width))
                width *= 2
            layers += [NasBench201Cell(makers, width, width, 4, LABEL) for _ in range(num_cells)]
        self.layers = nn.Sequential(*layers)
        self.last = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(width, num_labels)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a score for each class."""
        scores: Tensor = self.classifier(self.last(self.layers(self.stem(inputs))))
        return scores


class Halving(nn.Module):
    """A residual block that halves the picture and doubles the channels."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            ReluConvBn(in_channels, out_channels, 3, 2), ReluConvBn(out_channels, out_channels, 3)
        )
        self.shortcut = nn.Sequential(
            nn.AvgPool2d(2, ceil_mode=True), nn.Conv2d(in_channels, out_channels, 1, bias=False)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the features at half the size."""
        output: Tensor = self.layers(inputs) + self.shortcut(inputs)
        return output


def _maker(name: str, affine: bool) -> Callable[[int, int], nn.Module]:
    def make(in_channels: int, out_channels: int) -> nn.Module:
        if name == "none":
            return Zero(1, out_channels)
        if name == "skip_connect":
            return (
                nn.Identity() if in_channels == out_channels else ReluConvBn(in_channels, out_channels, affine=affine)
            )
        if name == "avg_pool_3x3":
            return nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        return ReluConvBn(in_channels, out_channels, 3 if name.endswith("3x3") else 1, affine=affine)

    return make


def to_nasbench201(architecture: Mapping[str, Any]) -> str:
    """Return an architecture as the benchmark writes it.

    >>> to_nasbench201({f"cell/{i}_{j}": "none" for i in range(1, 4) for j in range(i)})
    '|none~0|+|none~0|none~1|+|none~0|none~1|none~2|'
    """
    nodes = [[f"{architecture[f'{LABEL}/{node}_{place}']}~{place}" for place in range(node)] for node in range(1, 4)]
    return "+".join(f"|{'|'.join(node)}|" for node in nodes)


def from_nasbench201(text: str) -> dict[str, str]:
    """Return the architecture that the benchmark writes as `text`.

    Raises:
        ConfigError: It is no such text.
    """
    found: dict[str, str] = {}
    for node, part in enumerate(text.split("+"), start=1):
        for edge in part.strip("|").split("|"):
            name, _, place = edge.partition("~")
            if name not in OPERATIONS or not place.isdigit() or int(place) >= node:
                raise ConfigError(f"{text!r} is no cell of NAS-Bench-201: {edge!r} is no operation of node {node}")
            found[f"{LABEL}/{node}_{place}"] = name
    return found
