"""Giving the choices of a model somebody who decides."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from treadle.nas.choosing import DEFAULTS, Chooser
from treadle.nas.space import Space


def attach(model: nn.Module, chooser: Chooser = DEFAULTS) -> Space:
    """Let `chooser` decide at every choice of a model; by default the defaults are taken again.

    Returns:
        The space of the model.
    """
    space = Space(model)
    for choice in space.choices.values():
        choice.chooser = chooser
    for leaf, _ in space.values:
        leaf.chooser = chooser
    return space


@contextmanager
def attached(space: Space, chooser: Chooser) -> Iterator[None]:
    """Let `chooser` decide inside of the block, and afterwards whoever did before."""
    users: list[Any] = [*space.choices.values(), *(leaf for leaf, _ in space.values)]
    before = [user.chooser for user in users]
    for user in users:
        user.chooser = chooser
    try:
        yield
    finally:
        for user, own in zip(users, before, strict=True):
            user.chooser = own
