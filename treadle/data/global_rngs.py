"""Python's, NumPy's and torch's global generators: seeded, watched at little cost, and put back."""

import random
from array import array
from collections.abc import Callable
from ctypes import c_char, string_at
from functools import cache
from typing import Any

import numpy as np
import torch

SEEDERS: dict[str, Callable[[int], object]] = {
    "random": random.seed,
    "numpy.random": np.random.seed,
    # torch.manual_seed takes a hundred times as long: it looks at the stack to seed accelerators lazily.
    "torch": torch.default_generator.manual_seed,
}
"""What seeds each of the generators."""

_Words = c_char * (4 * 625)
"""What a Mersenne Twister remembers, in memory: 624 words, and its place among them."""
_python: Any = random.random.__self__  # type: ignore[attr-defined]
_numpy: Any = np.random
_torch = torch.default_generator


@cache
def _words_of_python() -> Any:
    """Return the memory in which Python's generator has its place and its words; None if it is made in another way.

    To say what its state is, it makes 625 numbers, which takes as long as fetching several samples. The memory is
    only ever read, and only where it was seen to hold what the state says.
    """
    probe, offset = random.Random(1), object.__basicsize__
    if type(_python) is not random.Random or random.Random.__basicsize__ < offset + len(_Words()):
        return None
    for _ in range(3):
        place, *words = array("I", _Words.from_address(id(probe) + offset).raw)
        if (*words, place) != probe.getstate()[1]:
            return None
        probe.getrandbits(32 * 400)
    return _Words.from_address(id(_python) + offset)


@cache
def _stand_in() -> tuple[np.random.MT19937, Any]:
    """Return the generator that stands in for NumPy's while samples are fetched, and its memory; one a process."""
    generator = np.random.MT19937()
    return generator, _Words.from_address(generator.ctypes.state_address)


def _state_of_python() -> Any:
    words = _words_of_python()
    return random.getstate() if words is None else (words.raw, _python.gauss_next)


def _restore_python(state: Any) -> None:
    if _words_of_python() is not None:
        memory, gauss = state
        place, *words = array("I", memory)
        state = _python.VERSION, (*words, place), gauss
    random.setstate(state)


def _state_of_torch() -> bytes:
    state = _torch.get_state()
    return string_at(state.data_ptr(), len(state))


def states() -> tuple[Any, ...]:
    """Return the state of each generator, to be compared; NumPy's is that of the one that stands in for it."""
    return _state_of_python(), _stand_in()[1].raw, _state_of_torch()


def moved(before: tuple[Any, ...]) -> list[str]:
    """Return the names of the generators that were drawn from, or seeded, since `states` returned `before`."""
    now = states()
    if now == before:
        return []
    return [name for name, old, new in zip(SEEDERS, before, now, strict=True) if old != new]


class Aside:
    """Keeps the generators of the process as they are, while others are drawn from, and says which ones those were.

    Attributes:
        moved: After the block, the names of the generators that were drawn from, or seeded, in it.
    """

    moved: list[str]

    def __enter__(self) -> None:
        # NumPy's generator is put aside as a whole: copying its state out and in takes longer than all the rest. Being
        # exchanged, it has no normal number in store, which would hide a draw.
        self._numpy = _numpy.get_bit_generator()
        _numpy.set_bit_generator(_stand_in()[0])
        self._before = states()

    def __exit__(self, *exception: object) -> None:
        self.moved = moved(self._before)
        _numpy.set_bit_generator(self._numpy)
        if "torch" in self.moved:
            _torch.set_state(torch.frombuffer(bytearray(self._before[2]), dtype=torch.uint8))
        if "random" in self.moved:
            _restore_python(self._before[0])
