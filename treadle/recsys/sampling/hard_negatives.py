"""Negatives that the model itself finds hard."""

from collections.abc import Callable

import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.sampling.sampler import NegativeSampler

PairScorer = Callable[[Tensor, Tensor], Tensor]
"""Scores of pairs: takes users and items of one shape and returns scores of that shape."""


class HardNegatives(NegativeSampler):
    """Draws several candidates for each negative and keeps the one with the highest score.

    This is dynamic negative sampling (Zhang et al., "Optimizing top-n collaborative filtering via dynamic negative
    item sampling", 2013). Scores are taken without gradients and without touching the mode of the model. Of equal
    scores the first candidate stays.

    Args:
        sampler: Where candidates come from.
        scorer: Scores pairs; called with users and items, each `[rows, count * candidates]`.
        candidates: How many candidates there are for a negative.
    """

    def __init__(self, sampler: NegativeSampler, scorer: PairScorer, *, candidates: int) -> None:
        if candidates < 1:
            raise ConfigError(f"candidates={candidates}: draw at least one for each negative")
        self.seen = sampler.seen
        self._sampler, self._scorer, self._candidates = sampler, scorer, candidates

    @torch.no_grad()
    def sample(self, users: Tensor, count: int, *, seed: int | Tensor, positions: Tensor | None = None) -> Tensor:
        """Return `count` negatives for each user, each the hardest of its candidates."""
        drawn = self._sampler.sample(users, count * self._candidates, seed=seed, positions=positions)
        scores = self._scorer(users.unsqueeze(1).expand_as(drawn), drawn)
        if scores.shape != drawn.shape:
            raise ConfigError(
                f"the scorer of hard negatives returned the shape {tuple(scores.shape)} for pairs of the shape "
                f"{tuple(drawn.shape)}; it has to return a score for each"
            )
        shape = (len(users), count, self._candidates)
        hardest = _first_largest(scores.reshape(shape))
        return drawn.view(shape).gather(2, hardest.unsqueeze(2)).squeeze(2)

    def draw(self, users: Tensor, bits: Tensor) -> Tensor:
        """Return the plain candidate that each random number stands for."""
        return self._sampler.draw(users, bits)

    def weights(self) -> Tensor:
        """Return the weights of the candidates."""
        return self._sampler.weights()


def _first_largest(scores: Tensor) -> Tensor:
    """Return the first place of the largest score of each group; `argmax` may give any of them."""
    largest = scores.amax(dim=2, keepdim=True)
    places = torch.arange(scores.shape[2], device=scores.device)
    return torch.where(scores == largest, places, scores.shape[2] - 1).amin(dim=2)
