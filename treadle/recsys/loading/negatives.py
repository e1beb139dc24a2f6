"""Where a loader's negatives come from."""

from typing import Any

import torch
from torch import Tensor

from treadle.recsys.interaction import Interaction
from treadle.recsys.sampling.hard_negatives import HardNegatives, PairScorer
from treadle.recsys.sampling.popularity_negatives import PopularityNegatives
from treadle.recsys.sampling.sampler import NegativeSampler
from treadle.recsys.sampling.uniform_negatives import UniformNegatives
from treadle.recsys.sampling.user_items import UserItems


class Negatives:
    """Draws items for the rows of a batch, on the device of the batch.

    Args:
        seen: What may not be drawn, by user, or by target of a sequential model.
        field: The column of a batch that `seen` goes by: users, or the targets of a sequential model.
        distribution: "uniform" or "popularity".
        counts: How often each item is used in training.
        alpha: The power of the counts.
        users: Whom items will be drawn for.
    """

    def __init__(
        self,
        seen: UserItems,
        field: str,
        *,
        distribution: str = "uniform",
        counts: Tensor | None = None,
        alpha: float = 1.0,
        users: Tensor | None = None,
    ) -> None:
        self.seen, self.field = seen, field
        self._distribution, self._counts, self._alpha, self._users = distribution, counts, alpha, users
        self._samplers: dict[torch.device, NegativeSampler] = {}
        self.sampler(seen.device)  # whoever has nothing left to draw from is named now, and not in training

    def sampler(self, device: torch.device) -> NegativeSampler:
        """Return the sampler that lives on `device`."""
        if device not in self._samplers:
            seen = self.seen.to(device)
            if self._distribution == "popularity":
                assert self._counts is not None, "popularity goes by counts"
                made: NegativeSampler = PopularityNegatives(seen, self._counts, alpha=self._alpha, users=self._users)
            else:
                made = UniformNegatives(seen, users=self._users)
            self._samplers[device] = made
        return self._samplers[device]

    def draw(
        self, batch: Interaction, count: int, *, seed: int, places: Tensor, scorer: PairScorer | None, candidates: int
    ) -> Tensor:
        """Return `count` items for each row of a batch.

        Args:
            batch: The rows.
            count: How many items.
            seed: Which items.
            places: Where each row stands in the epoch.
            scorer: Scores candidates, of which the best is taken; None takes them as they are drawn.
            candidates: How many candidates there are for an item.
        """
        keys: Any = batch[self.field]
        sampler = self.sampler(keys.device)
        if scorer is not None:
            sampler = HardNegatives(sampler, scorer, candidates=candidates)
        return sampler.sample(keys, count, seed=seed, positions=places)
