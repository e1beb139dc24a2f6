"""Python's, NumPy's and torch's global generators: seeded, watched at little cost, and put back."""

import random
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import Structure, c_char, c_double, c_int, string_at
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
# Bound here: what looks at a generator is exchanged while samples are watched.
_state_of_python, _state_of_numpy = random.getstate, _numpy.get_state
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


class _Normal(Structure):
    """The second of two normal numbers that NumPy's generator made at once, as it is in memory."""

    _fields_ = (("stored", c_int), ("number", c_double))


def _find_normal_of_numpy() -> Any:
    """Return the memory in which NumPy has a normal number in store; None if it is not where it was expected.

    To say what its state is takes 30 µs. The memory is only ever read, as that of Python's generator.
    """
    probe: Any = np.random.RandomState(1)
    probe.standard_normal()
    size = type(probe).__basicsize__
    place = string_at(id(probe), size).find(struct.pack("d", probe.get_state(legacy=False)["gauss"]))
    if not _Normal.number.offset <= place <= size - 8 or type(_singleton) is not type(probe):
        return None
    offset = place - _Normal.number.offset
    stored = _Normal.from_address(id(probe) + offset).stored
    probe.standard_normal()
    if (stored, _Normal.from_address(id(probe) + offset).stored) != (1, 0):
        return None
    return _Normal.from_address(id(_singleton) + offset)


_singleton: Any = _numpy.mtrand._rand
_normal_of_numpy = _find_normal_of_numpy()


def _normal_in_store() -> float | None:
    """Return the normal number that NumPy's generator has in store; None if it has none."""
    if _normal_of_numpy is None:
        state = _state_of_numpy(legacy=False)
        return float(state["gauss"]) if state["has_gauss"] else None
    return float(_normal_of_numpy.number) if _normal_of_numpy.stored else None


# Between two steps nothing of this is in the processor's caches any more, so that each call counts: there are few.


def states() -> tuple[Any, ...]:
    """Return the state of each generator, to be compared; NumPy's is that of the one that stands in for it."""
    python = _state_of_python() if _words_of_python is None else (_words_of_python.raw, _python.gauss_next)
    return python, _words_of_numpy.raw, _state_of_torch().numpy().tobytes()


def moved(before: tuple[Any, ...], now: tuple[Any, ...]) -> list[str]:
    """Return the names of the generators whose states differ."""
    return [name for name, old, new in zip(SEEDERS, before, now, strict=True) if old != new]


class Aside:
    """Keeps the generators of the process as they are, while others are drawn from, and says which ones those were.

    Attributes:
        moved: After the block, the names of the generators that were drawn from, or seeded, in it.
    """

    moved: Sequence[str] = ()

    def __enter__(self) -> None:
        # NumPy's generator is put aside as a whole: copying its state out and in takes longer than all the rest. Being
        # exchanged, it has no normal number in store, which would hide a draw.
        self._numpy, self._normal = _numpy.get_bit_generator(), _normal_in_store()
        _numpy.set_bit_generator(_stand_in)
        self._before = states()

    def __exit__(self, *exception: object) -> None:
        now = states()
        _numpy.set_bit_generator(self._numpy)
        self.moved = ()
        if now != self._before:
            self.moved = moved(self._before, now)
            self._restore(*self._before)
        if self._normal is not None and type(self._numpy) is np.random.MT19937:
            _numpy.set_state({**_state_of_numpy(legacy=False), "has_gauss": 1, "gauss": self._normal})

    def _restore(self, python: Any, numpy: bytes, torchs: bytes) -> None:
        if self._numpy is _stand_in:
            # A sample is fetched while another one is: this generator stands in for itself.
            _words_of_numpy.raw = numpy
        if "torch" in self.moved:
            torch.default_generator.set_state(torch.frombuffer(bytearray(torchs), dtype=torch.uint8))
        if "random" in self.moved:
            if _words_of_python is not None:
                place, *words = array("I", python[0])
                python = _python.VERSION, (*words, place), python[1]
            random.setstate(python)


READERS: dict[str, tuple[tuple[Any, str], ...]] = {
    "random": ((random, "getstate"),),
    "numpy.random": ((np.random, "get_state"),),
    "torch": tuple((module, name) for module in (torch, torch.random) for name in ("get_rng_state", "initial_seed")),
}
"""The functions that look at a generator, which moves nothing: `torch.random.fork_rng` uses one of them."""


@contextmanager
def readers_noted(read: set[str]) -> Iterator[None]:
    """Add the names of the generators that are looked at in the block."""
    kept = [(module, name, getattr(module, name)) for places in READERS.values() for module, name in places]

    def noting(generator: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            read.add(generator)
            return function(*args, **kwargs)

        return call

    for generator, places in READERS.items():
        for module, name in places:
            setattr(module, name, noting(generator, getattr(module, name)))
    try:
        yield
    finally:
        for module, name, function in kept:
            setattr(module, name, function)
