"""Batches of triples of a knowledge graph, and of triples beside interactions."""

from typing import Any, Self

import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import DataError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataloader.abstract_dataloader import AbstractDataLoader
from treadle.recsys.data.dataloader.custom_sampling import CustomTails, Negatives
from treadle.recsys.data.dataloader.train_dataloader import TrainDataLoader
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.knowledge_dataset import KnowledgeBasedDataset
from treadle.recsys.data.sampling.user_items import UserItems
from treadle.recsys.enums import KGDataLoaderState

NAMED = 5
"""How many entities an error message names."""
ROUND_BITS = 48
"""Bits to the left at which the number of a round over the triples stands in the number of an epoch."""


class KGDataLoader(AbstractDataLoader):
    """Batches of triples, each with an entity that is no tail of its head.

    A batch has `head_id`, `relation_id`, `tail_id` and `neg_tail_id`. `train_batch_size` counts triples.

    Args:
        config: The settings.
        dataset: The data for training.
        sampler: Where tails come from; by default all entities that no triple of the head ends with, whatever its
            relation, are equally likely.
        shuffle: Whether each epoch has an order of its own.

    Raises:
        DataError: A head is joined with every entity, so that there is no other tail.
    """

    _dataset: KnowledgeBasedDataset

    def __init__(
        self, config: Config, dataset: KnowledgeBasedDataset, sampler: Any = None, shuffle: bool = False
    ) -> None:
        if callable(getattr(sampler, "sample_by_entity_ids", None)):
            sampler = CustomTails(sampler)
        self._fields = (dataset.head_entity_field, dataset.relation_field, dataset.tail_entity_field)
        self._negative_tail = f"{config['NEG_PREFIX']}{dataset.tail_entity_field}"
        super().__init__(config, dataset, other_tails(dataset) if sampler is None else sampler, shuffle)
        dataset.copy_field_property(self._negative_tail, dataset.tail_entity_field)

    def _count_rows(self) -> int:
        return len(self._dataset.kg_feat)

    def _init_batch_size_and_step(self) -> None:
        self.set_batch_size(int(self.config["train_batch_size"]))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The columns of the triples; a run that is resumed looks at some of their rows."""
        return self._dataset.triples()

    def make_batch(self, rows: Tensor, places: Tensor, epoch: int) -> Interaction:
        """Return the triples of these rows, with their negatives."""
        graph = self._dataset.kg_feat
        columns = {name: graph[name][rows] for name in self._fields}
        heads = columns[self._fields[0]]
        seed = fold_seed(self._seed, "tails", epoch)
        drawn = self._sampler.sampler(heads.device).sample(heads, 1, seed=seed, positions=places)
        columns[self._negative_tail] = drawn.squeeze(1)
        return Interaction.of_columns(columns, len(rows))

    def stretch(self, epoch: int, first: int, last: int) -> Interaction:
        """Return the triples from one place to another in an epoch that goes round the graph as often as it needs to.

        Each round has an order and negatives of its own.
        """
        number = self.sample_size
        parts = []
        while first < last:
            passed, start = divmod(first, number)
            stop = min(number, start + last - first)
            places = torch.arange(start, stop, device=self.device)
            numbered = epoch + (passed << ROUND_BITS)
            parts.append(self.make_batch(self._rows(numbered, start, stop), places, numbered))
            first += stop - start
        columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}
        return Interaction.of_columns(columns, sum(map(len, parts)))


def other_tails(dataset: KnowledgeBasedDataset) -> Negatives:
    """Return the source of tails that no triple of a head has."""
    heads, _, tails = dataset.triples()
    number = dataset.entity_num
    known = UserItems(heads, tails, num_users=number, num_items=number)
    spent = (known.counts >= known.catalogue_size).nonzero().flatten()
    if len(spent):
        named = ", ".join(map(repr, dataset.id2token(dataset.entity_field, spent[:NAMED]).tolist()))
        raise DataError(f"the entities {named} are heads of triples to every entity: no other tail can be drawn")
    return Negatives(known, dataset.head_entity_field, users=torch.unique(heads))


class KnowledgeBasedDataLoader(AbstractDataLoader):
    """Interactions, triples, or both in one batch.

    What a batch has is chosen with `set_mode`: `RSKG`, as at first, gives interactions with as many triples beside
    them, `RS` interactions alone, and `KG` triples alone. Where there are fewer triples than rows in an epoch, it goes
    round them again in another order; where there are more, each epoch has others.

    Args:
        config: The settings.
        dataset: The data for training.
        sampler: Where negatives of interactions come from; None for none.
        kg_sampler: Where negatives of triples come from; see `KGDataLoader`.
        shuffle: Whether each epoch has an order of its own.

    Attributes:
        general_dataloader: The interactions alone.
        kg_dataloader: The triples alone.
        state: What a batch has.
    """

    def __init__(
        self,
        config: Config,
        dataset: KnowledgeBasedDataset,
        sampler: Any = None,
        kg_sampler: Any = None,
        shuffle: bool = False,
    ) -> None:
        self.general_dataloader = TrainDataLoader(config, dataset, sampler, shuffle)
        self.kg_dataloader = KGDataLoader(config, dataset, kg_sampler, shuffle)
        self.state = KGDataLoaderState.RSKG
        super().__init__(config, dataset, sampler, shuffle)

    @property
    def _chosen(self) -> TrainDataLoader | KGDataLoader:
        return self.kg_dataloader if self.state is KGDataLoaderState.KG else self.general_dataloader

    def set_mode(self, state: KGDataLoaderState) -> None:
        """Choose what a batch has."""
        self.state = state
        self._init_batch_size_and_step()

    def part(self, state: KGDataLoaderState) -> AbstractDataLoader:
        """Return the loader that gives what `state` says, whatever `set_mode` chose."""
        if state is not KGDataLoaderState.RSKG:
            return self.kg_dataloader if state is KGDataLoaderState.KG else self.general_dataloader
        self.set_mode(state)
        return self

    def _count_rows(self) -> int:
        return self._chosen.sample_size

    def _init_batch_size_and_step(self) -> None:
        chosen = self._chosen
        self.step, self._batch_size, self.sample_size = chosen.step, chosen.batch_size, chosen.sample_size

    def set_batch_size(self, batch_size: int) -> None:
        """Take another number of rows, or triples, for a batch, negatives of interactions included."""
        for loader in (self.general_dataloader, self.kg_dataloader):
            loader.set_batch_size(batch_size)
        self._init_batch_size_and_step()

    def update_config(self, config: Config) -> None:
        """Take the batch size of other settings."""
        for loader in (self.general_dataloader, self.kg_dataloader):
            loader.update_config(config)
        super().update_config(config)

    def get_model(self, model: Any) -> None:
        """Take the model that scores candidates, where negatives are chosen by it."""
        super().get_model(model)
        self.general_dataloader.get_model(model)

    def to(self, device: torch.device | str) -> Self:
        """Keep the data on `device`, and make the batches there; returns the loader itself."""
        for loader in (self.general_dataloader, self.kg_dataloader):
            loader.to(device)
        self._dataset, self.device = self.general_dataloader.dataset, torch.device(device)
        return self

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The columns of interactions and triples; a run that is resumed looks at some of their rows."""
        return (*self.general_dataloader.tensors, *self.kg_dataloader.tensors)

    def batch_at(self, epoch: int, index: int, *, rank: int = 0, size: int = 1) -> Interaction:
        """Return the batch numbered `index` of an epoch, or the share of one of several processes."""
        batch: Interaction = self._chosen.batch_at(epoch, index, rank=rank, size=size)
        if self.state is KGDataLoaderState.RSKG and len(batch):
            first, last = self._share(index, rank, size)
            # A positive and its negatives may be several rows, and each row has a triple.
            each = len(batch) // (last - first)
            batch.update(self.kg_dataloader.stretch(epoch, first * each, last * each))
        return batch

    def make_batch(self, rows: Tensor, places: Tensor, epoch: int) -> Interaction:
        """Return the interactions, or the triples, of these rows."""
        return self._chosen.make_batch(rows, places, epoch)
