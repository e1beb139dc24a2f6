"""The space of DARTS: two cells, one that keeps the picture's size and one that halves it, repeated."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.nas.space.cell import Cell
from treadle.nas.zoo.operations import (
    DilatedConv,
    DropPath,
    FactorizedReduce,
    PoolBn,
    ReluConvBn,
    SeparableConv,
)

NODES, SUMMED = 4, 2
STEM_WIDTH = 3
"""How many times as wide as the first cell the first convolution is."""
OPERATIONS = (
    "max_pool_3x3",
    "avg_pool_3x3",
    "skip_connect",
    "sep_conv_3x3",
    "sep_conv_5x5",
    "dil_conv_3x3",
    "dil_conv_5x5",
)


class DartsSpace(nn.Module):
    """Pictures through a stack of cells, which share their decisions: those that halve the picture, and the others.

    An architecture has `normal/op_<node>_<slot>`, `normal/input_<node>_<slot>` and the same for `reduce`: 32 decisions.
    While weights and architecture are searched together, batch norms are best without weights of their own:
    `affine=False`. To train what was found, build a wider and deeper space and freeze it.

    Args:
        width: Channels of a node in the first cells.
        num_cells: How many cells there are; those after one and two thirds halve the picture.
        num_labels: How many classes there are.
        in_channels: Channels of a picture.
        affine: Whether batch norms in cells have weights.
        partial_channels: In how many parts channels are divided, one of which goes through the operations; for the
            search only.
        drop_path: How likely an operation is left out for a sample.
        auxiliary: Whether a second classifier reads the features after two thirds of the cells; while training, the
            model then returns the outputs of both.
    """

    def __init__(
        self,
        width: int = 16,
        num_cells: int = 8,
        num_labels: int = 10,
        *,
        in_channels: int = 3,
        affine: bool = True,
        partial_channels: int = 1,
        drop_path: float = 0.0,
        auxiliary: bool = False,
    ) -> None:
        super().__init__()
        if width % partial_channels:
            raise ConfigError(f"DartsSpace: width={width} cannot be divided into partial_channels={partial_channels}")
        how: dict[str, Any] = {"affine": affine, "partial_channels": partial_channels, "drop_path": drop_path}
        stem = STEM_WIDTH * width
        self.stem = nn.Sequential(nn.Conv2d(in_channels, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem))
        halving = {num_cells // 3, 2 * num_cells // 3}
        self.cells = nn.ModuleList()
        before, last, halved, channels = stem, stem, False, width
        self._auxiliary_after = 2 * num_cells // 3
        for number in range(num_cells):
            halves = number in halving
            channels *= 2 if halves else 1
            self.cells.append(_cell(before, last, channels, halved, halves, **how))
            before, last, halved = last, NODES * channels, halves
            if auxiliary and number == self._auxiliary_after:
                self.auxiliary: nn.Module | None = AuxiliaryHead(last, num_labels)
        if not auxiliary:
            self.auxiliary = None
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(last, num_labels)

    def forward(self, inputs: Tensor) -> Any:
        """Return a score for each class; with `auxiliary`, while training, those of both classifiers."""
        before = last = self.stem(inputs)
        second: Tensor | None = None
        for number, cell in enumerate(self.cells):
            before, last = last, cell(before, last)
            if number == self._auxiliary_after and self.auxiliary is not None and self.training:
                second = self.auxiliary(last)
        scores: Tensor = self.classifier(self.pool(last).flatten(1))
        return scores if second is None else (scores, second)


class AuxiliaryHead(nn.Sequential):
    """A small classifier of features in the middle of a network."""

    def __init__(self, in_channels: int, num_labels: int) -> None:
        super().__init__(
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Conv2d(in_channels, 128, 1, bias=False),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.Conv2d(128, 768, 2, bias=False),
            nn.BatchNorm2d(768),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(768, num_labels),
        )


class CellInputs(nn.Module):
    """Brings the outputs of the two cells before to the same size."""

    def __init__(self, before: int, last: int, channels: int, halved: bool, *, affine: bool) -> None:
        super().__init__()
        shrink = FactorizedReduce if halved else ReluConvBn
        self.before = shrink(before, channels, affine=affine)
        self.last = ReluConvBn(last, channels, affine=affine)

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return both, with as many channels as a node has."""
        return [self.before(inputs[0]), self.last(inputs[1])]


def _cell(
    before: int,
    last: int,
    channels: int,
    halved: bool,
    halves: bool,
    *,
    affine: bool,
    partial_channels: int,
    drop_path: float,
) -> Cell:
    width = channels // partial_channels

    def maker(name: str) -> Callable[[int, int, int], nn.Module]:
        def make(node: int, slot: int, place: int) -> nn.Module:
            operation = make_operation(name, width, 2 if halves and place < 2 else 1, affine=affine)
            if not drop_path or isinstance(operation, nn.Identity):
                return operation
            return nn.Sequential(operation, DropPath(drop_path))

        return make

    return Cell(
        {name: maker(name) for name in OPERATIONS},
        NODES,
        SUMMED,
        2,
        preprocessor=CellInputs(before, last, channels, halved, affine=affine),
        partial_channels=partial_channels,
        label="reduce" if halves else "normal",
    )


def make_operation(name: str, channels: int, stride: int, *, affine: bool = True) -> nn.Module:
    """Return an operation of this space by its name."""
    kind, *rest = name.split("_")
    size = 3 if name.endswith("3x3") else 5
    if name == "skip_connect":
        return nn.Identity() if stride == 1 else FactorizedReduce(channels, channels, affine=affine)
    if rest[0] == "pool":
        return PoolBn("max" if kind == "max" else "average", channels, stride)
    if kind == "sep":
        return SeparableConv(channels, size, stride, affine=affine)
    return DilatedConv(channels, size, stride, 2, affine=affine)
