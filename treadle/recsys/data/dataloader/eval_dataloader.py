"""Batches to evaluate on, and what they are evaluated against."""

from typing import Any

import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataloader.abstract_dataloader import AbstractDataLoader
from treadle.recsys.data.dataloader.custom_sampling import drawn_candidates, is_custom_sampler, used_items
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction, cat_interactions
from treadle.recsys.data.sampling.user_items import UserItems
from treadle.recsys.data.sequential_dataset import SequentialDataset
from treadle.recsys.enums import FeatureType
from treadle.recsys.evaluation.scoring import users_at_once

Pairs = tuple[Tensor, Tensor]


class Ranked(AbstractDataLoader):
    """What full and sampled rankings have in common: who is ranked for, and what is to be found.

    A query is a user, or, for sequential models, a row of the data: a history that has a next item.

    Attributes:
        positives: What is to be found, by query.
        queries: Who has something to be found.
    """

    collates = False
    positives: UserItems
    queries: Tensor

    def _find_positives(self) -> None:
        data = self._dataset
        items = data.inter_feat[str(data.iid_field)]
        self.by_row = isinstance(data, SequentialDataset)
        users = torch.arange(len(data)) if self.by_row else data.inter_feat[str(data.uid_field)]
        number = len(data) if self.by_row else data.user_num
        self.positives = UserItems(users, items, num_users=number, num_items=data.item_num)
        self.queries = self.positives.counts.nonzero().flatten()

    def _count_rows(self) -> int:
        return len(self.queries)

    def interaction(self, queries: Tensor) -> Interaction:
        """Return what a model is given to score items for these queries."""
        if self.by_row:
            return self._dataset[queries]
        return self._dataset.join(Interaction.of_columns({str(self._dataset.uid_field): queries}, len(queries)))

    def to(self, device: torch.device | str) -> Any:
        """Keep the data on `device`, and make the batches there; returns the loader itself."""
        super().to(device)
        self.positives, self.queries = self.positives.to(device), self.queries.to(device)
        return self


class FullSortEvalDataLoader(Ranked):
    """Users, or rows of a sequential data set, for whom all items are ranked.

    A batch is what RecBole's is: the interaction to score, the items not to be recommended as pairs of a row and an
    item (None if there are none), and the items to be found as pairs.

    Args:
        config: The settings.
        dataset: The data of this part.
        sampler: What is not to be recommended, by query, or None; items to be found are left out of it. Of a sampler
            of RecBole's kind it is what its users have used; of one for sequences, nothing.
        shuffle: Not used; an evaluation has one order.

    Attributes:
        seen: What is not to be recommended, by query.
    """

    def __init__(self, config: Config, dataset: Dataset, sampler: Any = None, shuffle: bool = False) -> None:
        self._dataset = dataset
        self._find_positives()
        if is_custom_sampler(sampler):
            sampler = None if self.by_row else used_items(sampler, dataset.user_num, dataset.item_num)
        self.seen: UserItems | None = None if sampler is None else sampler - self.positives
        self._chosen = False
        super().__init__(config, dataset, sampler, shuffle=False)

    def _init_batch_size_and_step(self) -> None:
        """Take as many queries as fit the memory, or the settings ask for."""
        items = self._dataset.item_num
        asked = int(self.config["eval_batch_size"]) // items
        self.step = max(asked, min(users_at_once(items, self.device), self.sample_size), 1)
        if self.by_row:
            self.step = min(self.step, int(self.config["eval_batch_size"]))
        self._batch_size = self.step * items

    def set_batch_size(self, batch_size: int) -> None:
        """Take another number of scores for a batch."""
        super().set_batch_size(batch_size)
        self._chosen = True
        self.step = max(batch_size // self._dataset.item_num, 1)

    def to(self, device: torch.device | str) -> "FullSortEvalDataLoader":
        """Keep the data on `device`, and make the batches there; returns the loader itself."""
        super().to(device)
        self.seen = None if self.seen is None else self.seen.to(device)
        if not self._chosen:
            self._init_batch_size_and_step()
        return self

    def make_batch(self, rows: Tensor, places: Tensor, epoch: int) -> tuple[Interaction, Pairs | None, Tensor, Tensor]:
        """Return the interaction to score, what is seen, and the rows and items to be found."""
        queries = self.queries[rows]
        hidden = None if self.seen is None else self.seen.select(queries)
        found, items = self.positives.select(queries)
        return self.interaction(queries), hidden, found, items


class NegSampleEvalDataLoader(Ranked):
    """Users, or rows, whose items are ranked among drawn ones; or plain rows with labels.

    A batch is what RecBole's is: the rows to score, positives of a user before the negatives; which user of the batch
    each row belongs to; and the items to be found as pairs of such a user and an item. With labels it is the rows, and
    three times None.

    Args:
        config: The settings.
        dataset: The data of this part.
        sampler: What each query's items are ranked among, or a sampler of RecBole's kind, which draws it once; None for
            rows with labels.
        shuffle: Not used; an evaluation has one order.

    Attributes:
        negatives: What each query's items are ranked among; None for rows with labels.

    Raises:
        ConfigError: There are neither negatives nor labels.
    """

    def __init__(self, config: Config, dataset: Dataset, sampler: Any = None, shuffle: bool = False) -> None:
        self._dataset = dataset
        self._label = str(config["LABEL_FIELD"])
        self.by_row = isinstance(dataset, SequentialDataset)
        if sampler is not None:
            self._find_positives()
        if is_custom_sampler(sampler):
            sampler = self._drawn_by(sampler, config)
        self.negatives: UserItems | None = sampler
        if sampler is None:
            self._check_label()
        super().__init__(config, dataset, sampler, shuffle=False)

    def _drawn_by(self, sampler: Any, config: Config) -> UserItems:
        """Draw what positives are ranked among with a sampler of RecBole's kind, as its phase is evaluated."""
        phase = str(getattr(sampler, "phase", None) or "test")
        number = config[f"{phase}_neg_sample_args"]["sample_num"]
        if not isinstance(number, int):
            mode = config["eval_args"]["mode"][phase]
            raise ConfigError(f"eval_args.mode is {mode!r} for {phase}, which ranks among no drawn items; use 'uni100'")
        data = self._dataset
        users, items = (data.inter_feat[str(field)] for field in (data.uid_field, data.iid_field))
        queries = torch.arange(len(data)) if self.by_row else users
        seed = fold_seed(config.seed_of_split, "evaluation", phase)
        return drawn_candidates(sampler, users, items, queries, self.positives, number=number, seed=seed)

    def _check_label(self) -> None:
        where = f"eval_args.mode is 'labeled', but LABEL_FIELD={self._label!r}"
        if self._label not in self._dataset.inter_feat:
            raise ConfigError(f"{where} is no field of the interactions; load it, or make it with threshold")
        if self._dataset.field2type[self._label] is not FeatureType.FLOAT:
            kind = self._dataset.field2type[self._label].value
            raise ConfigError(f"{where} has the type {kind!r}; labels are numbers, of the type 'float'")

    def _count_rows(self) -> int:
        return len(self._dataset) if self.negatives is None else super()._count_rows()

    def _init_batch_size_and_step(self) -> None:
        self.set_batch_size(int(self.config["eval_batch_size"]))

    def set_batch_size(self, batch_size: int) -> None:
        """Take another number of rows for a batch, negatives included."""
        super().set_batch_size(batch_size)
        if self.negatives is not None:
            lengths = (self.positives.counts + self.negatives.counts).sort(descending=True).values.cumsum(0)
            # As many as fit even if they are those with the longest lists.
            self.step = max(int((lengths <= batch_size).sum()), 1)
            self._batch_size = int(lengths[self.step - 1])

    def to(self, device: torch.device | str) -> "NegSampleEvalDataLoader":
        """Keep the data on `device`, and make the batches there; returns the loader itself."""
        if self.negatives is None:
            AbstractDataLoader.to(self, device)
            return self
        super().to(device)
        self.negatives = self.negatives.to(device)
        return self

    def make_batch(
        self, rows: Tensor, places: Tensor, epoch: int
    ) -> tuple[Interaction, Tensor | None, Tensor | None, Tensor | None]:
        """Return the rows to score, their queries, and the queries and items to be found."""
        if self.negatives is None:
            return self._dataset[rows], None, None, None
        queries = self.queries[rows]
        found, items = self.positives.select(queries)
        others, drawn = self.negatives.select(queries)
        parts = [self._candidates(queries, *pairs) for pairs in ((found, items), (others, drawn))]
        owners = torch.cat([found, others])
        order = owners.sort(stable=True).indices
        labels = torch.cat([torch.ones(len(items)), torch.zeros(len(drawn))]).to(self.device)
        together = cat_interactions(parts)
        together[self._label] = labels
        return together[order], owners[order], found, items

    def _candidates(self, queries: Tensor, owners: Tensor, items: Tensor) -> Interaction:
        """Return a row for each query and item."""
        rows: Interaction = self.interaction(queries)[owners]
        rows[str(self._dataset.iid_field)] = items
        return self._dataset.join(rows)
