"""A space together with what is learnt about its choices."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.nas.fixed import temporarily_attach
from treadle.nas.space.choosers import Chooser
from treadle.nas.space.model_space import Space

# The weights of candidates: what an architecture is before it is one


SPREAD = 1e-3
"""How far from each other the weights of candidates begin."""

Rows = dict[str, tuple[Any, ...]]


def find_rows(space: Space, trainer: str) -> Rows:
    """Return what is weighed in a space: for each row its candidates.

    Raises:
        ConfigError: Something in the space cannot be weighed; it is named, with the reason.
    """
    found: Rows = {}
    for place, choice in space.choices.items():
        reason = choice.reason_not_differentiable()
        if reason is not None:
            raise ConfigError(f"{trainer} cannot weigh the candidates of {choice.current_label!r} at {place}: {reason}")
        found |= choice.rows()
    for leaf, user in space.values:
        if user is None:
            raise ConfigError(
                f"{trainer} cannot weigh the values of {leaf.key!r}, which is read in a forward; use it as an argument "
                "of nas.Built(...), or a trainer that goes one way at a time, such as SposTrainer"
            )
        found[leaf.key] = leaf.candidates
    if not found:
        raise ConfigError(f"{trainer}: the model has no choices; put a LayerChoice, an InputChoice or a Cell into it")
    return found


def gumbel_noise(shape: Sequence[int], seed: int) -> Tensor:
    """Return noise whose addition to logits makes their largest one a draw; the same on every device and process."""
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return -(-uniform.clamp_min(1e-12).log()).log()


class CandidateWeights(nn.Module):
    """A weight for every candidate of every row, learnt by gradients.

    They are the softmax of one matrix, so that a pass through the supernet needs one kernel for all of them.

    Args:
        rows: The candidates of each row.
        seed: What the first weights are drawn with; None draws from torch's generator.

    Attributes:
        places: The number of each row.
        learning: Whether gradients reach the weights in the passes that follow.
    """

    known: Tensor

    def __init__(self, rows: Mapping[str, Sequence[Any]], seed: int | None = None) -> None:
        super().__init__()
        self.rows: Rows = {label: tuple(candidates) for label, candidates in rows.items()}
        self.places = {label: place for place, label in enumerate(self.rows)}
        self.learning = True
        most = max(map(len, self.rows.values()))
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        known = torch.tensor([[place < len(row) for place in range(most)] for row in self.rows.values()])
        first = torch.randn(known.shape, generator=generator) * SPREAD
        self.alpha = nn.Parameter(first.masked_fill(~known, 0.0))
        self.register_buffer("known", known, persistent=False)

    def probabilities(self) -> Tensor:
        """Return the weights of all rows; those of each sum to one, and nothing is random in them."""
        return self._logits().softmax(-1)

    def _logits(self) -> Tensor:
        return self.alpha.masked_fill(~self.known, -torch.inf)

    def mixing(self) -> Tensor:
        """Return the weights that the next pass sums candidates with."""
        weights = self.probabilities()
        return weights if self.learning else weights.detach()

    def named(self, values: Tensor) -> dict[str, list[float]]:
        """Return numbers of candidates on the host, by row, without those that are not there."""
        lists = values.detach().double().cpu().tolist()
        return {label: lists[place][: len(self.rows[label])] for label, place in self.places.items()}


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
        space.attach(chooser)

    @property
    def choices(self) -> Space:
        """The space, as it was read."""
        return self.read[0]

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
        with temporarily_attach(self.choices, chooser):
            before, self.chooser = self.chooser, chooser
            try:
                yield
            finally:
                self.chooser = before
