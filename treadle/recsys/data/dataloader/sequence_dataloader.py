"""Batches of sequences to train on at all their positions."""

from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataloader.abstract_dataloader import AbstractDataLoader
from treadle.recsys.data.dataloader.custom_sampling import Negatives
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sequential_dataset import SequentialDataset
from treadle.recsys.data.transforms import make_transform

POSITIVES = "pos_"
"""What stands before the name of the column with the targets."""


class SequenceTrainDataLoader(AbstractDataLoader):
    """Stretches of sequences: what a user did, and at each position what came next.

    A batch has `user_id`; the columns of a history, such as `item_id_list` `[rows, length]` and `item_length`;
    `pos_item_id_list`, the item after each position; and, if there are negatives, `neg_item_id_list`, of the same
    shape, or `[rows, length, n]` for several. Behind the end of a sequence all are 0. `train_batch_size` counts
    positions, so that an update learns from as many targets as it does from rows of a `TrainDataLoader`. A `transform`
    adds its columns, as it does there.

    Args:
        config: The settings.
        dataset: The data for training.
        sampler: Where negatives come from, by user or by target; None for none.
        shuffle: Whether each epoch has an order of its own.
    """

    transforms = True
    _dataset: SequentialDataset

    def __init__(
        self, config: Config, dataset: SequentialDataset, sampler: Negatives | None = None, shuffle: bool = False
    ) -> None:
        self._begins, self._lengths = self._find_rows(config, dataset)
        self._width = dataset.max_item_list_len
        arguments = config["train_neg_sample_args"]
        self._count = int(arguments["sample_num"]) if sampler is not None else 0
        self._prefix = str(config["NEG_PREFIX"])
        self._list = f"{dataset.iid_field}{config['LIST_SUFFIX']}"
        self._transform = make_transform(config, dataset)
        super().__init__(config, dataset, sampler, shuffle)

    @staticmethod
    def _find_rows(config: Config, dataset: SequentialDataset) -> tuple[Tensor, Tensor]:
        """Return where the rows begin in the flat interactions, and how long they are."""
        return dataset.sequences(last_only=bool(config["train_last_stretch_only"]))

    def _count_rows(self) -> int:
        return len(self._begins)

    def _init_batch_size_and_step(self) -> None:
        self.set_batch_size(int(self.config["train_batch_size"]))

    def set_batch_size(self, batch_size: int) -> None:
        """Take another number of positions for a batch."""
        super().set_batch_size(batch_size)
        self.step = max(batch_size // self._width, 1)
        self._batch_size = self.step * self._width

    def prefixes(self) -> "PrefixDataLoader":
        """Return a loader of all parts of these sequences from their beginning."""
        return PrefixDataLoader(self.config, self._dataset, self.shuffle)

    def make_batch(self, rows: Tensor, places: Tensor, epoch: int) -> Interaction:
        """Return the stretches of these rows."""
        self._begins, self._lengths = self._begins.to(self.device), self._lengths.to(self.device)
        begins, lengths = self._begins[rows], self._lengths[rows]
        columns = self._columns(begins, lengths) | self._targets(begins, lengths, places, epoch)
        batch = self._dataset.join(Interaction.of_columns(columns, len(rows)))
        if self._transform is None:
            return batch
        return self._transform(batch, fold_seed(self._seed, "transform", epoch), places)

    def _columns(self, begins: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        data = self._dataset
        assert data.flat is not None
        user = str(data.uid_field)
        return data.windows(begins, lengths) | {user: data.flat[user][begins], data.item_list_length_field: lengths}

    def _targets(self, begins: Tensor, lengths: Tensor, places: Tensor, epoch: int) -> dict[str, Tensor]:
        targets = self._dataset.windows(begins + 1, lengths)[self._list]
        columns = {POSITIVES + self._list: targets}
        if self._count:
            columns[self._prefix + self._list] = self._negatives(begins, targets, places, epoch)
        return columns

    def _negatives(self, begins: Tensor, targets: Tensor, places: Tensor, epoch: int) -> Tensor:
        """Return items that the sampler allows beside the target of each position, 0 where there is no target."""
        data = self._dataset
        assert data.flat is not None
        inside = targets != 0
        cells = places.unsqueeze(1) * self._width + inside.new_ones(inside.shape).cumsum(1) - 1
        if self._sampler.field == data.uid_field:
            keys = data.flat[str(data.uid_field)][begins].unsqueeze(1).expand_as(targets)
        else:
            keys = targets.masked_fill(~inside, 1)
        seed = fold_seed(self._seed, "negatives", epoch)
        sampler = self._sampler.sampler(targets.device)
        drawn: Tensor = sampler.sample(keys.reshape(-1), self._count, seed=seed, positions=cells.reshape(-1))
        drawn = drawn.view(*targets.shape, self._count).masked_fill_(~inside.unsqueeze(2), 0)
        return drawn.squeeze(2) if self._count == 1 else drawn


class PrefixDataLoader(SequenceTrainDataLoader):
    """All parts of sequences from their beginning, to learn from without targets.

    A batch has `user_id` and the columns of a history, such as `item_id_list` `[rows, length]` and `item_length`; a
    `transform` adds its columns. `train_batch_size` counts rows.

    Args:
        config: The settings.
        dataset: The data for training.
        shuffle: Whether each epoch has an order of its own.
    """

    def __init__(self, config: Config, dataset: SequentialDataset, shuffle: bool = False) -> None:
        super().__init__(config, dataset, None, shuffle)

    @staticmethod
    def _find_rows(config: Config, dataset: SequentialDataset) -> tuple[Tensor, Tensor]:
        return dataset.prefixes(last_only=bool(config["train_last_stretch_only"]))

    def set_batch_size(self, batch_size: int) -> None:
        """Take another number of rows for a batch."""
        AbstractDataLoader.set_batch_size(self, batch_size)

    def _targets(self, begins: Tensor, lengths: Tensor, places: Tensor, epoch: int) -> dict[str, Tensor]:
        return {}
