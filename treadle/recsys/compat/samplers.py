"""Negative samplers by RecBole's names, for files that draw items of their own."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, DataError
from treadle.recsys.dataset import Dataset

Ids = np.ndarray[Any, Any]
ROUNDS = 1000
"""How often values that may not be drawn are drawn again before somebody is told that there are none."""


class AbstractSampler:
    """Draws ids from 1 on that a key has not used, evenly or by how often they are used.

    Args:
        size: How many ids there are, padding included.
        keys, values: Pairs that are used, and so not drawn.
        distribution: "uniform" or "popularity".
        alpha: The power of the counts, for popularity.
        seed: What decides the draws.

    Raises:
        ConfigError: There is no such distribution.
    """

    def __init__(
        self, size: int, keys: Ids, values: Ids, *, distribution: str = "uniform", alpha: float = 1.0, seed: int = 2020
    ) -> None:
        if distribution not in ("uniform", "popularity"):
            raise ConfigError(f"distribution={distribution!r} does not exist; there are ['uniform', 'popularity']")
        self._size = size
        self._used = np.unique(keys.astype(np.int64) * size + values)
        self._random = np.random.default_rng(fold_seed(seed, "sampler"))
        counts = np.bincount(values, minlength=size)[1:].astype(np.float64) ** alpha
        self._shares = None if distribution == "uniform" else counts / counts.sum()

    def _draw(self, count: int) -> Ids:
        if self._shares is None:
            return self._random.integers(1, self._size, count)
        return self._random.choice(np.arange(1, self._size), count, p=self._shares)

    def sample_by_key_ids(self, key_ids: Any, num: int) -> Tensor:
        """Return `num` ids for each key, `[keys * num]`: the first of every key, then the second of every key.

        Raises:
            DataError: A key has used every id.
        """
        keys = np.tile(np.asarray(key_ids, dtype=np.int64).reshape(-1), num)
        drawn = self._draw(len(keys))
        for _ in range(ROUNDS):
            wrong = np.isin(keys * self._size + drawn, self._used)
            if not wrong.any():
                return torch.from_numpy(drawn)
            drawn[wrong] = self._draw(int(wrong.sum()))
        raise DataError(f"there is nothing left to draw for {keys[wrong][0]}: it has used every id")


class Sampler(AbstractSampler):
    """Draws items that a user has not used, in the phase and those before it.

    Args:
        phases: The names of the phases, in their order; one name for one data set.
        datasets: The data set of each.
        distribution: "uniform" or "popularity".
        alpha: The power of the counts, for popularity.
    """

    def __init__(
        self,
        phases: str | Sequence[str],
        datasets: Dataset | Sequence[Dataset],
        distribution: str = "uniform",
        alpha: float = 1.0,
    ) -> None:
        self.phases = [phases] if isinstance(phases, str) else list(phases)
        self.datasets: list[Dataset] = [datasets] if isinstance(datasets, Dataset) else list(datasets)
        if len(self.phases) != len(self.datasets):
            raise ConfigError(f"there are {len(self.phases)} phases, and {len(self.datasets)} data sets")
        self.distribution, self.alpha = distribution, alpha
        self._use(self.datasets)

    def _use(self, datasets: Sequence[Dataset]) -> None:
        pairs = [[ids.cpu().numpy() for ids in one.user_item_pairs()] for one in datasets]
        users, items = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
        seed = int(datasets[0].config["seed"])
        arguments: dict[str, Any] = {"distribution": self.distribution, "alpha": self.alpha, "seed": seed}
        super().__init__(datasets[0].item_num, users, items, **arguments)

    def set_phase(self, phase: str) -> "Sampler":
        """Return a sampler for a phase.

        Raises:
            ConfigError: There is no such phase.
        """
        if phase not in self.phases:
            raise ConfigError(f"there is no phase {phase!r}; there are {self.phases}")
        until = self.phases.index(phase) + 1
        return type(self)(self.phases[:until], self.datasets[:until], self.distribution, self.alpha)

    def sample_by_user_ids(self, user_ids: Any, item_ids: Any, num: int) -> Tensor:
        """Return `num` items for each user, which the user has not used; see `sample_by_key_ids`."""
        return self.sample_by_key_ids(user_ids, num)


class RepeatableSampler(AbstractSampler):
    """Draws items other than the one that is the target, whatever the user has used.

    Args:
        phases: The names of the phases.
        dataset: The data set.
        distribution: "uniform" or "popularity".
        alpha: The power of the counts, for popularity.
    """

    def __init__(
        self, phases: str | Sequence[str], dataset: Dataset, distribution: str = "uniform", alpha: float = 1.0
    ) -> None:
        self.phases = [phases] if isinstance(phases, str) else list(phases)
        items = dataset.user_item_pairs()[1].cpu().numpy()
        arguments: dict[str, Any] = {"distribution": distribution, "alpha": alpha, "seed": int(dataset.config["seed"])}
        super().__init__(dataset.item_num, items, items, **arguments)

    def set_phase(self, phase: str) -> "RepeatableSampler":
        """Return the sampler, which is the same for every phase."""
        return self

    def sample_by_user_ids(self, user_ids: Any, item_ids: Any, num: int) -> Tensor:
        """Return `num` items for each row, none of them the row's own; see `sample_by_key_ids`."""
        return self.sample_by_key_ids(item_ids, num)


class KGSampler(AbstractSampler):
    """Draws entities that are not the tail of any triple of a head.

    Args:
        dataset: The data set with a knowledge graph.
        distribution: "uniform" or "popularity".
        alpha: The power of the counts, for popularity.
    """

    def __init__(self, dataset: Any, distribution: str = "uniform", alpha: float = 1.0) -> None:
        heads, _, tails = (ids.cpu().numpy() for ids in dataset.triples())
        arguments: dict[str, Any] = {"distribution": distribution, "alpha": alpha, "seed": int(dataset.config["seed"])}
        super().__init__(dataset.entity_num, heads, tails, **arguments)

    def sample_by_entity_ids(self, head_entity_ids: Any, num: int = 1) -> Tensor:
        """Return `num` entities for each head; see `sample_by_key_ids`."""
        return self.sample_by_key_ids(head_entity_ids, num)
