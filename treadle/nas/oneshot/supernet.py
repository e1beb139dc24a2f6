"""A space together with what is learnt about its choices."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from treadle.nas.attaching import attached
from treadle.nas.choosing import Chooser
from treadle.nas.oneshot.weights import CandidateWeights
from treadle.nas.space import Space


class Supernet(nn.Module):
    """A space that somebody decides in, as one module: what is learnt about the choices is saved with the weights.

    The modules of the space stay as they are; only who decides at its choices changes.

    Args:
        space: The space.
        chooser: Who decides.
        architecture: What is learnt about the choices; None if nothing is.
    """

    def __init__(self, space: Space, chooser: Chooser, architecture: nn.Module | None = None) -> None:
        super().__init__()
        self.space = space.model
        self.architecture = architecture
        # Not a module of its own: the space is in here already.
        self.read = (space,)
        self.chooser = chooser
        self.attach()

    @property
    def choices(self) -> Space:
        """The space, as it was read."""
        return self.read[0]

    def attach(self) -> None:
        """Let the chooser decide at every choice."""
        for choice in self.choices.choices.values():
            choice.chooser = self.chooser
        for leaf, _ in self.choices.values:
            leaf.chooser = self.chooser

    @property
    def weights(self) -> CandidateWeights:
        """The weights of candidates, where they are learnt."""
        assert isinstance(self.architecture, CandidateWeights)
        return self.architecture

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the space gives."""
        self.chooser.prepare(self.architecture)
        return self.space(*args, **kwargs)

    @contextmanager
    def choosing(self, chooser: Chooser) -> Iterator[None]:
        """Let somebody else decide inside of the block."""
        with attached(self.choices, chooser):
            before, self.chooser = self.chooser, chooser
            try:
                yield
            finally:
                self.chooser = before
