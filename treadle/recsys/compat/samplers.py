"""Negative samplers by RecBole's names, for programs that draw items of their own."""

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, DataError
from treadle.recsys.data.dataset import Dataset

Ids = np.ndarray[Any, Any]
DISTRIBUTIONS = ("uniform", "popularity")
ROUNDS = 1000
"""How often values that may not be drawn are drawn again before somebody is told that there are none."""


class UsedIds:
    """What each key has used: `used[key]` is a set, and `used[keys]` an array of sets, as in RecBole.

    Args:
        keys, values: The pairs.
        number: How many keys there are.
        size: How many values there are.
    """

    def __init__(self, keys: Ids, values: Ids, *, number: int, size: int) -> None:
        self._codes = np.unique(keys.astype(np.int64) * size + values)
        self._number, self._size = number, size

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, key: Any) -> Any:
        if np.ndim(key):
            found = np.empty(len(key), dtype=object)
            found[:] = [self[one] for one in key]
            return found
        if not 0 <= int(key) < self._number:
            raise IndexError(f"there is no key {key}; there are {self._number}")
        first, last = np.searchsorted(self._codes, [int(key) * self._size, (int(key) + 1) * self._size])
        return set((self._codes[first:last] % self._size).tolist())

    def has(self, keys: Ids, values: Ids) -> Ids:
        """Return whether each key has used the value beside it."""
        found: Ids = np.isin(keys * self._size + values, self._codes)
        return found

    def pairs(self) -> tuple[Ids, Ids]:
        """Return all pairs of a key and a value that it has used."""
        return self._codes // self._size, self._codes % self._size


class AbstractSampler:
    """Draws ids that a key has not used, evenly or by how often they are used.

    A subclass says with `_uni_sampling(sample_num)` what is drawn evenly, with `_get_candidates_list()` what stands for
    the counts of popularity, and with `get_used_ids()` what each key has used: for each key a set of ids, or None.

    Args:
        distribution: "uniform" or "popularity".
        alpha: The power of the counts, for popularity.

    Attributes:
        used_ids: What `get_used_ids` returned.
        random: What a sampler of Treadle's draws from.

    Raises:
        ConfigError: There is no such distribution.
    """

    seed = 2020

    def __init__(self, distribution: str, alpha: float = 1.0) -> None:
        self.distribution, self.alpha = "", alpha
        self.reseed(fold_seed(self.seed, "sampler"))
        self.set_distribution(distribution)
        self.used_ids: Any = self.get_used_ids()

    def reseed(self, seed: int) -> None:
        """Draw from a new beginning."""
        self.random = np.random.default_rng(seed)

    def set_distribution(self, distribution: str) -> None:
        """Draw evenly from now on, or by popularity."""
        if distribution not in DISTRIBUTIONS:
            raise ConfigError(f"distribution={distribution!r} does not exist; there are {list(DISTRIBUTIONS)}")
        self.distribution = distribution
        if distribution == "popularity":
            self._build_alias_table()

    def _uni_sampling(self, sample_num: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define _uni_sampling")

    def _get_candidates_list(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define _get_candidates_list")

    def get_used_ids(self) -> Any:
        """Return what each key has used."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_used_ids")

    def _build_alias_table(self) -> None:
        self._popular, counts = np.unique(np.asarray(self._get_candidates_list()), return_counts=True)
        powers = counts.astype(np.float64) ** self.alpha
        self._shares = powers / powers.sum()

    def _pop_sampling(self, sample_num: int) -> Any:
        return self.random.choice(self._popular, sample_num, p=self._shares)

    def sampling(self, sample_num: int) -> Ids:
        """Return so many ids, used or not."""
        drawn = self._uni_sampling(sample_num) if self.distribution == "uniform" else self._pop_sampling(sample_num)
        return np.asarray(drawn, dtype=np.int64)

    def sample_by_key_ids(self, key_ids: Any, num: int) -> Tensor:
        """Return `num` ids for each key, `[keys * num]`: the first of every key, then the second of every key.

        Raises:
            DataError: A key has used every id.
        """
        keys = np.tile(np.asarray(key_ids, dtype=np.int64).reshape(-1), num)
        return self._until(keys, lambda places, drawn: self._is_used(keys[places], drawn))

    def _until(self, keys: Ids, wrong: Any) -> Tensor:
        """Draw an id for each key, and again those that `wrong` finds wrong."""
        drawn, left = self.sampling(len(keys)), np.arange(len(keys))
        for _ in range(ROUNDS):
            left = left[wrong(left, drawn[left])]
            if not len(left):
                return torch.from_numpy(drawn)
            drawn[left] = self.sampling(len(left))
        raise DataError(f"there is nothing left to draw for {keys[left[0]]}: it has used every id")

    def _is_used(self, keys: Ids, values: Ids) -> Ids:
        used = list(self.used_ids.values())[-1] if isinstance(self.used_ids, dict) else self.used_ids
        if used is None:
            return np.zeros(len(keys), bool)
        if isinstance(used, UsedIds):
            return used.has(keys, values)
        return np.array([value in used[key] for key, value in zip(keys.tolist(), values.tolist(), strict=True)], bool)


class _ItemSampler(AbstractSampler):
    """Draws items of a data set, the popular ones by how often they are in it."""

    dataset: Dataset
    item_num: int

    def _uni_sampling(self, sample_num: int) -> Any:
        return self.random.integers(1, self.item_num, sample_num)

    def _get_candidates_list(self) -> Any:
        return self.dataset.user_item_pairs()[1].cpu().numpy()


class _PhaseSampler(_ItemSampler):
    """Draws items for phases of an evaluation."""

    phase: str | None = None
    phases: list[str]

    def set_phase(self, phase: str) -> Self:
        """Return the sampler of a phase.

        Raises:
            ConfigError: There is no such phase.
        """
        if phase not in self.phases:
            raise ConfigError(f"there is no phase {phase!r}; there are {self.phases}")
        made = copy.copy(self)
        made.phase = phase
        made.reseed(fold_seed(self.seed, "sampler", phase))
        return made


class Sampler(_PhaseSampler):
    """Draws items that a user has not used, in the phase and those before it.

    Args:
        phases: The names of the phases, in their order; one name for one data set.
        datasets: The data set of each.
        distribution: "uniform" or "popularity".
        alpha: The power of the counts, for popularity.

    Attributes:
        phase: The phase; None until `set_phase` is called, and what is not drawn is then what the last one has used.
        used_ids: What each user has used; before `set_phase`, that of each phase.
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
        first = self.datasets[0]
        self.uid_field, self.iid_field = first.uid_field, first.iid_field
        self.user_num, self.item_num, self.seed = first.user_num, first.item_num, int(first.config["seed"])
        super().__init__(distribution, alpha)

    def _get_candidates_list(self) -> Any:
        return np.concatenate([one.user_item_pairs()[1].cpu().numpy() for one in self.datasets])

    def get_used_ids(self) -> dict[str, Any]:
        """Return what each user has used, for each phase."""
        pairs = [[ids.cpu().numpy() for ids in one.user_item_pairs()] for one in self.datasets]
        found = {}
        for number, phase in enumerate(self.phases, start=1):
            users, items = (np.concatenate([pair[side] for pair in pairs[:number]]) for side in (0, 1))
            found[phase] = UsedIds(users, items, number=self.user_num, size=self.item_num)
        return found

    def set_phase(self, phase: str) -> Self:
        """Return a sampler for a phase, which knows nothing of later ones."""
        made = super().set_phase(phase)
        until = self.phases.index(phase) + 1
        made.phases, made.datasets = self.phases[:until], self.datasets[:until]
        made.used_ids = self.used_ids[phase] if isinstance(self.used_ids, dict) else self.used_ids
        made.set_distribution(self.distribution)
        return made

    def sample_by_user_ids(self, user_ids: Any, item_ids: Any, num: int) -> Tensor:
        """Return `num` items for each user, which the user has not used; see `sample_by_key_ids`."""
        return self.sample_by_key_ids(user_ids, num)


class RepeatableSampler(_PhaseSampler):
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
        self.dataset, self.iid_field = dataset, dataset.iid_field
        self.user_num, self.item_num, self.seed = dataset.user_num, dataset.item_num, int(dataset.config["seed"])
        super().__init__(distribution, alpha)

    def get_used_ids(self) -> Any:
        """Return that nobody has used anything: items may be repeated."""
        nothing = np.empty(0, np.int64)
        return UsedIds(nothing, nothing, number=self.user_num, size=self.item_num)

    def sample_by_user_ids(self, user_ids: Any, item_ids: Any, num: int) -> Tensor:
        """Return `num` items for each row, none of them the row's own; see `sample_by_key_ids`."""
        targets = np.tile(np.asarray(item_ids, dtype=np.int64).reshape(-1), num)
        return self._until(targets, lambda places, drawn: drawn == targets[places])


class KGSampler(AbstractSampler):
    """Draws entities that are not the tail of any triple of a head.

    Args:
        dataset: The data set with a knowledge graph.
        distribution: "uniform" or "popularity", by how often an entity is in a triple.
        alpha: The power of the counts, for popularity.
    """

    def __init__(self, dataset: Any, distribution: str = "uniform", alpha: float = 1.0) -> None:
        self.dataset = dataset
        self.hid_list, _, self.tid_list = (ids.cpu().numpy() for ids in dataset.triples())
        self.entity_num, self.seed = dataset.entity_num, int(dataset.config["seed"])
        super().__init__(distribution, alpha)

    def _uni_sampling(self, sample_num: int) -> Any:
        return self.random.integers(1, self.entity_num, sample_num)

    def _get_candidates_list(self) -> Any:
        return np.concatenate([self.hid_list, self.tid_list])

    def get_used_ids(self) -> Any:
        """Return the tails of each head."""
        return UsedIds(self.hid_list, self.tid_list, number=self.entity_num, size=self.entity_num)

    def sample_by_entity_ids(self, head_entity_ids: Any, num: int = 1) -> Tensor:
        """Return `num` entities for each head; see `sample_by_key_ids`."""
        return self.sample_by_key_ids(head_entity_ids, num)


class SeqSampler(_ItemSampler):
    """Draws, for each item of a history, another one.

    Args:
        dataset: The data set.
        distribution: "uniform" or "popularity".
        alpha: The power of the counts, for popularity.
    """

    def __init__(self, dataset: Dataset, distribution: str = "uniform", alpha: float = 1.0) -> None:
        self.dataset = dataset
        self.item_num, self.seed = dataset.item_num, int(dataset.config["seed"])
        super().__init__(distribution, alpha)

    def get_used_ids(self) -> Any:
        """Return that there is nothing that could not be drawn, but the item itself."""
        return None

    def sample_neg_sequence(self, pos_sequence: Any) -> Tensor:
        """Return another item for each of a sequence."""
        items = np.asarray(pos_sequence, dtype=np.int64)
        flat = items.reshape(-1)
        drawn = self._until(flat, lambda places, drawn: drawn == flat[places])
        return drawn.view(items.shape)
