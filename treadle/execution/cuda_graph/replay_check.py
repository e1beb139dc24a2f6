"""Whether a replay does what the step does, found out by doing both from one state."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from treadle.data import RandomState
from treadle.errors import CaptureError
from treadle.memory.device import available_host_memory

TOLERANCE = 0.03
"""How far from the steps the replays may end, as a share of the distance that the steps covered: rounding differs."""
SPREAD = 8.0
"""How far beyond that, in multiples of the distance between two runs of the same steps, where those differ."""
NOISE = 0.1
"""How far apart two runs of the same steps may end, as a share of the distance that they covered."""


LARGEST = 2**20
"""Of a larger tensor, so many elements spread over it are compared: all of it would double the memory of a run."""
ON_DEVICE = 2**28
"""Bytes of tensors that are always copied where they are."""
SHARE = 0.1
"""More than that are copied there as long as they are no larger share of what a step takes in any case."""


SHARE_OF_HOST = 0.25
"""The same of the memory that the host has left."""


class Snapshot:
    """Copies of named tensors and of every generator, to compare with and to go back to.

    Args:
        tensors: The tensors themselves, by name.
        generators: Generators beside torch's own.
        room: Memory of the host by name, for copies that are made there; kept by whoever makes several, one after the
            other, for it takes longer to get it than to copy.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor],
        generators: Iterable[torch.Generator] = (),
        room: dict[str, Tensor] | None = None,
    ) -> None:
        self._live = tensors
        self._copies = copy_tensors(tensors, {} if room is None else room)
        pairs = [(name, tensor, self._copies[name]) for name, tensor in tensors.items()]
        # A copy never changes; of one on the host, what is compared is taken from the tensor while it is the same.
        self.began = {
            name: _part(copy, whole=False) if copy.device == tensor.device else _part(tensor, whole=False).clone()
            for name, tensor, copy in pairs
        }
        self._random = RandomState()
        self._generators = self._random.state_dict()
        self._others = [(generator, generator.get_state()) for generator in generators]

    def now(self, *, whole: bool = False) -> dict[str, Tensor]:
        """Return copies of the tensors as they are now: of large ones elements spread over them, or all."""
        return {name: _part(tensor, whole=whole).clone() for name, tensor in self._live.items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back in place."""
        for name, tensor in self._live.items():
            tensor.copy_(self._copies[name], non_blocking=True)
        self.restore_random()

    def restore_random(self) -> None:
        """Put the generators back."""
        self._random.load_state_dict(self._generators)
        for generator, state in self._others:
            generator.set_state(state)


def copy_tensors(tensors: dict[str, Tensor], room: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return copies: on the host where they would be much of what a step takes of the device's memory.

    Args:
        tensors: The tensors by name.
        room: Memory of the host, which is taken from there and added there.
    """
    if not takes_much(tensors.values()):
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}
    copies: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        known = room.get(name)
        if known is None or known.shape != tensor.shape or known.dtype != tensor.dtype:
            known = room[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copies[name] = known.copy_(tensor.detach(), non_blocking=True)
    torch.cuda.synchronize()
    return copies


def takes_much(tensors: Iterable[Tensor]) -> bool:
    """Whether copies of some tensors would be much of what a step takes of the memory of their device."""
    size = sum(tensor.nbytes for tensor in tensors if tensor.is_cuda)
    return size > ON_DEVICE and size > SHARE * torch.cuda.max_memory_allocated()


def takes_much_of_host(tensors: Iterable[Tensor]) -> bool:
    """Whether copies of some tensors would be much of the memory that the host has left."""
    size, left = sum(tensor.nbytes for tensor in tensors if tensor.device.type == "cpu"), available_host_memory()
    return size > ON_DEVICE and left is not None and size > SHARE_OF_HOST * left


def _part(tensor: Tensor, *, whole: bool) -> Tensor:
    tensor = tensor.detach()
    if whole or tensor.numel() <= LARGEST:
        return tensor
    return tensor.flatten()[:: tensor.numel() // LARGEST]


def tensors_in(state: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in nested containers, named by the way to them."""
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from tensors_in(value, f"{name}.{key}" if name else str(key))
    elif isinstance(state, (list, tuple)):
        for place, value in enumerate(state):
            yield from tensors_in(value, f"{name}.{place}")


def check_replay(
    before: dict[str, Tensor], stepped: dict[str, Tensor], replayed: dict[str, Tensor], again: dict[str, Tensor] | None
) -> bool:
    """Compare two ways to the same end.

    Args:
        before: Where both began.
        stepped: Where the steps ended.
        replayed: Where the replays ended.
        again: Where the steps ended when they were done once more; None if that was not tried yet.

    Returns:
        Whether they agree; False asks for the steps to be done once more.

    Raises:
        CaptureError: They do not agree, by more than steps differ from themselves.
    """
    differing = [name for name in stepped if not _equal(stepped[name], replayed[name])]
    if not differing:
        return True
    for name in differing:
        _require_motion(name, before[name], stepped[name], replayed[name])
    if again is None:
        return False
    way, spread = _all_apart(stepped, before), _all_apart(stepped, again)
    if not spread <= NOISE * way:
        raise CaptureError(
            f"two steps do not end where the same two steps ended before: {_worst(stepped, again)} differs most; "
            f"{CAUSE}"
        )
    apart = _all_apart(stepped, replayed)
    if not apart <= TOLERANCE * way + SPREAD * spread:
        raise CaptureError(
            f"two replays of the step do not end where two steps do: they are {apart:.3g} apart after a change of "
            f"{way:.3g}, and {_worst(stepped, replayed)} differs most; {CAUSE}"
        )
    return True


CAUSE = "something in the step depends on a value of Python's that changes from step to step"


def _require_motion(name: str, before: Tensor, stepped: Tensor, replayed: Tensor) -> None:
    """Refuse a tensor that steps change and replays do not, and a count that is not the same."""
    if torch.equal(replayed, before):
        raise CaptureError(f"a replay leaves {name} as it is, which a step changes; change it in place, on the device")
    if not stepped.is_floating_point():
        raise CaptureError(f"two replays of the step do not count as two steps do: {name} differs; {CAUSE}")


def _all_apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the distance over all tensors together.

    Compared one by one, a tensor whose gradient is nothing but rounding would fail: an optimizer with moments takes
    steps of the usual size with it, in any direction.
    """
    return math.hypot(*(_distance(one[name], other[name]) for name in one))


def _worst(one: dict[str, Tensor], other: dict[str, Tensor]) -> str:
    return max(one, key=lambda name: _distance(one[name], other[name]))


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or bool(_differences(one, other).count_nonzero() == 0)


def _distance(one: Tensor, other: Tensor) -> float:
    return float(torch.linalg.vector_norm(_differences(one, other)))


def _differences(one: Tensor, other: Tensor) -> Tensor:
    """Return how far numbers are apart, one by one: nothing for two that are both nan, or the same infinity."""
    same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, one.double() - other.double()).flatten()
