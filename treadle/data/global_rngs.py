"""Python's, NumPy's and torch's global generators: seeded, watched at little cost, and put back."""

import random
from array import array
from collections.abc import Callable
from ctypes import c_char
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
_state_of_torch = torch.default_generator.get_state
_stand_in = np.random.MT19937(0)
"""Stands in for NumPy's generator while samples are fetched."""
_words_of_numpy: Any = _Words.from_address(_stand_in.ctypes.state_address)


def _find_words_of_python() -> Any:
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


_words_of_python = _find_words_of_python()

# Between two steps nothing of this is in the processor's caches any more, so that each call counts: there are few.


def states() -> tuple[Any, ...]:
    """Return the state of each generator, to be compared; NumPy's is that of the one that stands in for it."""
    python = random.getstate() if _words_of_python is None else (_words_of_python.raw, _python.gauss_next)
    return python, _words_of_numpy.raw, _state_of_torch().numpy().tobytes()


def moved(before: tuple[Any, ...], now: tuple[Any, ...]) -> list[str]:
    """Return the names of the generators whose states differ."""
    return [name for name, old, new in zip(SEEDERS, before, now, strict=True) if old != new]


class Aside:
    """Keeps the generators of the process as they are, while others are drawn from, and says which ones those were.

    Attributes:
        moved: After the block, the names of the generators that were drawn from, or seeded, in it.
    """

    def __enter__(self) -> None:
        # NumPy's generator is put aside as a whole: copying its state out and in takes longer than all the rest. Being
        # exchanged, it has no normal number in store, which would hide a draw.
        self._numpy = _numpy.get_bit_generator()
        _numpy.set_bit_generator(_stand_in)
        self._before = states()

    def __exit__(self, *exception: object) -> None:
        now = states()
        _numpy.set_bit_generator(self._numpy)
        self.moved: list[str] = []
        if now != self._before:
            self.moved = moved(self._before, now)
            self._restore(*self._before)

    def _restore(self, python: Any, numpy: bytes, torchs: bytes) -> None:
        if "torch" in self.moved:
            torch.default_generator.set_state(torch.frombuffer(bytearray(torchs), dtype=torch.uint8))
        if "random" in self.moved:
            if _words_of_python is not None:
                place, *words = array("I", python[0])
                python = _python.VERSION, (*words, place), python[1]
            random.setstate(python)
