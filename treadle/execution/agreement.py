"""Whether a replay does what the step does, found out by doing both from one state."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from treadle.data import RandomState
from treadle.errors import CaptureError

TOLERANCE = 0.03
"""How far replays may end from steps altogether, as a part of how far the steps went: rounding differs."""
SPREAD = 8.0
"""How many times as far as two runs of the same steps are from each other, where they do not repeat themselves."""
NOISE = 0.1
"""How far two runs of the same steps may be from each other altogether, as a part of how far they went."""


class Snapshot:
    """Copies of named tensors and of every generator, to compare with and to go back to.

    Args:
        tensors: The tensors themselves, by name.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._live = tensors
        self.copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._random = RandomState()
        self._generators = self._random.state_dict()

    def now(self) -> dict[str, Tensor]:
        """Return copies of the tensors as they are now."""
        return {name: tensor.detach().clone() for name, tensor in self._live.items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back in place."""
        for name, tensor in self._live.items():
            tensor.copy_(self.copies[name])
        self._random.load_state_dict(self._generators)


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


def require_agreement(
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
        CaptureError: They do not agree, and it is not that steps do not repeat themselves.
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

    One by one they would say little: what an optimizer with moments makes of a gradient that is nothing but rounding is
    as large as of any other.
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
