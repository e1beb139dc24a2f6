"""What one rank holds of the weights of a model that is spread out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from treadle.checkpoint.format.shards import Piece, SavedTensor
from treadle.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Place:
    """Where in a weight the piece of this rank lies.

    Args:
        shape: The shape of the whole.
        offset: Where the piece begins.
        extent: Its extent.
        holders: How many ranks hold the same piece.
        first: Whether this rank is the first of them, which counts and writes it.
    """

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    extent: tuple[int, ...]
    holders: int
    first: bool

    @property
    def slices(self) -> tuple[slice, ...]:
        """The piece, as an index into the whole."""
        return tuple(slice(start, start + size) for start, size in zip(self.offset, self.extent, strict=True))


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the numbers of `tensor` that are on this rank, in its own memory."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def chunk(size: int, ranks: int, rank: int) -> tuple[int, int]:
    """Return where the share of a rank begins and how long it is, cut as torch cuts.

    >>> [chunk(5, 4, rank) for rank in range(4)]
    [(0, 2), (2, 2), (4, 1), (5, 0)]
    """
    each = -(-size // ranks)
    begin = min(rank * each, size)
    return begin, min(each, size - begin)


def cut(shape: tuple[int, ...], cuts: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return offset and extent of a piece that was cut several times, each time along one dimension.

    >>> cut((8, 6), [(0, 2, 1), (0, 2, 0)])
    ((4, 0), (2, 6))

    Args:
        shape: The shape of the whole.
        cuts: For each cut its dimension, the number of ranks and the rank.
    """
    offset, extent = [0] * len(shape), list(shape)
    for dimension, ranks, rank in cuts:
        begin, length = chunk(extent[dimension], ranks, rank)
        offset[dimension] += begin
        extent[dimension] = length
    return tuple(offset), tuple(extent)


def stand_for(weight: nn.Parameter) -> nn.Parameter:
    """Return what the optimizer holds for `weight`: the weight itself, or the memory of the piece that is here.

    Torch's optimizers work on that memory as on any weight, without a rank knowing of the others, which is right for
    those that update each number by itself.
    """
    if not isinstance(weight, DTensor):
        return weight
    return nn.Parameter(weight._local_tensor.detach(), requires_grad=weight.requires_grad)


def tensor_cut(weight: Tensor) -> int | None:
    """Return the dimension along which tensor parallelism cut a weight; None if it did not."""
    if not isinstance(weight, DTensor):
        return None
    shards = [placement.dim for placement in weight.placements if isinstance(placement, Shard)]
    return shards[0] if shards else None


def require_plain(model: nn.Module, spread: bool = False) -> None:
    """Refuse a model that is spread out already.

    Args:
        model: The model.
        spread: Whether a trainer is known to have spread it.

    Raises:
        ConfigError: It is.
    """
    if spread or any(isinstance(weight, DTensor) for weight in model.parameters()):
        raise ConfigError(
            "parallel=Plan(...): the model is sharded over the processes already, by another trainer or your program; "
            "build it anew for this one"
        )


def like_shard(value: Any, piece: Tensor) -> bool:
    """Whether something that an optimizer keeps has a number for each one of a weight."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape == piece.shape


@torch.no_grad()
def squared_sum(tensors: list[Tensor]) -> Tensor:
    """Return the sum of the squares of all numbers."""
    norm = torch.nn.utils.get_total_norm(tensors)
    return norm * norm


def piece(tensor: Tensor, place: Place) -> Piece:
    """Return what this rank holds of a tensor as it is saved."""
    return Piece(tensor, place.shape, place.offset, written=place.first and tensor.numel() > 0)


def saved_part(saved: Any, place: Place | None) -> Tensor:
    """Return the part of a saved tensor that belongs to a place; all of it where there is none."""
    if isinstance(saved, Piece):
        # It never left this process, and its place is the same.
        return saved.tensor
    if isinstance(saved, SavedTensor):
        return saved.whole() if place is None else saved.part(place.offset, place.extent)
    whole: Tensor = saved
    return whole if place is None else whole[place.slices]
