"""Interactions as sequences: for each interaction, what its user did before."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, DataError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.tables.columns import within_runs
from treadle.recsys.data.tables.pipeline import Prepared
from treadle.recsys.enums import FeatureSource, FeatureType

TARGET = "_target"
"""The column of the interactions that says where a row's own interaction stands among all."""


class SequentialDataset(Dataset):
    """A row for each interaction but a user's first: the interaction, and the user's history before it.

    The interactions `i1, i2, i3` of a user give the rows `i1 | i2` and `i1, i2 | i3`. Histories are not kept: all
    interactions lie in one array, by user and time, and a row is a place in it. `dataset[rows]` cuts the histories out,
    at most the last `MAX_ITEM_LIST_LENGTH` interactions, as columns `item_id_list` and the like, with zeros behind the
    shorter ones.

    Data that is split already may bring its own histories, as a column `item_id_list` of sequences; it is then taken
    as it is. Without such a column a row's history is what comes before it, in whatever part.

    Attributes:
        flat: All interactions by user and time; None if the data brings its own histories.
        max_item_list_len: The most interactions of a history.
        item_list_length_field: The name of the column with the length of a history.
    """

    flat: Interaction | None

    def __init__(
        self, config: Config, *, tables: Mapping[str, Any] | None = None, prepared: Prepared | None = None
    ) -> None:
        super().__init__(config, tables=tables, prepared=prepared)
        self.max_item_list_len = int(config["MAX_ITEM_LIST_LENGTH"])
        self.item_list_length_field = str(config["ITEM_LIST_LENGTH_FIELD"])
        self._suffix = str(config["LIST_SUFFIX"])
        self._row_parts: np.ndarray[Any, Any] | None = None
        self.set_field_property(self.item_list_length_field, FeatureType.TOKEN, FeatureSource.INTERACTION, 1)
        self.flat = None
        if self._item_list_field in self.inter_feat:
            self._read_given_histories()
        else:
            self.data_augmentation()

    @property
    def _item_list_field(self) -> str:
        return self._id_field("iid_field") + self._suffix

    def _read_given_histories(self) -> None:
        if self.file_size_list is None:
            raise ConfigError(
                f"the interactions have a column {self._item_list_field!r} with histories of their own, which only "
                "data that is split already may have; set benchmark_filename, or leave the column out of load_col"
            )
        most = self.max_item_list_len
        for name in self.inter_feat.columns:
            if name.endswith(self._suffix):
                setattr(self, f"{name.removesuffix(self._suffix)}_list_field", name)
                self.inter_feat[name] = _last_values(self.inter_feat[name], most)
                self.field2seqlen[name] = most
        lengths = (self.inter_feat[self._item_list_field] != 0).sum(dim=1)
        self.inter_feat[self.item_list_length_field] = lengths

    def data_augmentation(self) -> None:
        """Bring the interactions into the order of users and time, and make a row of each but a user's first.

        An override may do that before or after something of its own; or, as in RecBole, give `inter_feat` columns with
        histories by itself.

        Raises:
            DataError: No user has two interactions.
        """
        users = self.inter_feat[self._id_field("uid_field")].numpy()
        order = np.lexsort((self._times("a sequential model is trained"), users))
        if self.file_size_list is not None:
            self._row_parts = np.repeat(np.arange(len(self.file_size_list)), self.file_size_list)[order]
        flat: Interaction = self.inter_feat[order]
        users = users[order]
        new = np.append(True, users[1:] != users[:-1])
        starts = np.flatnonzero(new)[np.cumsum(new) - 1]
        targets = np.flatnonzero(~new)
        if not len(targets):
            raise DataError(
                f"no user of {self.dataset_name!r} has two interactions, so that there is nothing to predict"
            )
        if self._row_parts is not None:
            self._row_parts = self._row_parts[targets]
        self.flat = flat
        self.inter_feat = flat[targets]
        lengths = np.minimum(targets - starts[targets], self.max_item_list_len)
        self.inter_feat.update(
            {
                self.item_list_length_field: torch.from_numpy(lengths),
                TARGET: torch.from_numpy(targets),
            }
        )
        self._starts = torch.from_numpy(starts)
        self._declare_lists(flat)

    def _aug_presets(self) -> None:
        """Make the columns with histories known, for a `data_augmentation` of a subclass that makes them itself."""
        self._declare_lists(self.inter_feat)

    def _declare_lists(self, fields: Iterable[str]) -> None:
        for field in fields:
            if field != self.uid_field:
                self._declare_list(field)

    def _declare_list(self, field: str) -> None:
        listed = field + self._suffix
        setattr(self, f"{field}_list_field", listed)
        kind = self.field2type[field]
        length = (self.max_item_list_len, self.field2seqlen[field]) if kind.is_sequence else self.max_item_list_len
        self.copy_field_property(listed, field)
        listed_kind = FeatureType.TOKEN_SEQ if kind.is_token else FeatureType.FLOAT_SEQ
        self.set_field_property(listed, listed_kind, FeatureSource.INTERACTION, length)

    def __getitem__(self, index: Any) -> Interaction:
        rows: Interaction = self.inter_feat[index]
        if self.flat is None:
            return self.join(rows)
        places = rows[TARGET]
        rows.drop(TARGET)
        lengths = rows[self.item_list_length_field]
        rows.update(self.windows(places - lengths, lengths))
        return self.join(rows)

    def windows(self, starts: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Return stretches of the flat interactions, padded behind with zeros, by the names of the list fields.

        Args:
            starts: Where each stretch begins.
            lengths: How long it is, at most `max_item_list_len`.
        """
        assert self.flat is not None, "the data brings its own histories"
        steps = torch.arange(self.max_item_list_len, device=starts.device)
        inside = steps < lengths.unsqueeze(1)
        # Places behind the last interaction are not read: what stands there is cut off anyway.
        places = (starts.unsqueeze(1) + steps).clamp_(max=len(self.flat) - 1)
        found = {}
        for field, column in self.flat.interaction.items():
            if field != self.uid_field:
                values = column[places]
                mask = inside.view(*inside.shape, *[1] * (values.dim() - 2))
                found[field + self._suffix] = values.masked_fill_(~mask, 0)
        return found

    def sequences(self, *, last_only: bool = False) -> tuple[Tensor, Tensor]:
        """Return, for training on all positions at once, where stretches begin and how many inputs they have.

        A user's interactions up to the last one of this part are cut, from the end, into stretches of at most
        `max_item_list_len` inputs; each input's target is the interaction after it. Every interaction but a user's
        first is a target once.

        Args:
            last_only: Leave out all but the last stretch of each user.

        Raises:
            ConfigError: The data brings its own histories.
        """
        first, last = self._bounds()
        inputs, width = last - first, self.max_item_list_len
        pieces = np.ones_like(inputs) if last_only else -(-inputs // width)
        end = np.repeat(last, pieces) - within_runs(pieces) * width
        begin = np.maximum(end - width, np.repeat(first, pieces))
        return torch.from_numpy(begin), torch.from_numpy(end - begin)

    def prefixes(self, *, last_only: bool = False) -> tuple[Tensor, Tensor]:
        """Return where each part of a user's sequence from its beginning begins, and how long it is.

        The sequence goes up to the user's last interaction of this part, which is in the longest of its parts: nothing
        is kept back as a target. Of a part the last `max_item_list_len` interactions are taken.

        Args:
            last_only: Take only what begins within the last `max_item_list_len` interactions of each user.

        Raises:
            ConfigError: The data brings its own histories.
        """
        first, last = self._bounds()
        width = self.max_item_list_len
        if last_only:
            first = np.maximum(first, last - width + 1)
        counts = last - first + 1
        first = np.repeat(first, counts)
        end = first + within_runs(counts) + 1
        begin = np.maximum(end - width, first)
        return torch.from_numpy(begin), torch.from_numpy(end - begin)

    def _bounds(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return where the sequence of each user of this part begins, and where its last interaction stands."""
        if self.flat is None:
            raise ConfigError("train_all_positions needs the interactions themselves, and the data brings histories")
        places = self.inter_feat[TARGET].cpu().numpy()
        first, owner = np.unique(self._starts.cpu().numpy()[places], return_inverse=True)
        last = np.zeros(len(first), np.int64)
        np.maximum.at(last, owner, places)
        return first, last

    def items_in_order(self) -> Tensor:
        """Return the items of this part, those of a user after one another in the order of time.

        Data that brings its own histories has the order of its rows.
        """
        item = self._id_field("iid_field")
        if self.flat is None:
            return self.user_item_pairs()[1]
        begins, lengths = self.prefixes()
        ordered: Tensor = self.flat[item][(begins + lengths - 1).to(self.flat[item].device)]
        return ordered

    def user_item_pairs(self) -> tuple[Tensor, Tensor]:
        """Return the user and the item of every interaction of this part, the first one of a user's row included."""
        user, item = self._id_field("uid_field"), self._id_field("iid_field")
        return self._pair_column(user), self._pair_column(item)

    def _pair_column(self, field: str) -> Tensor:
        own = super()._pair_column(field)
        if self.flat is None:
            alone = self.inter_feat[self.item_list_length_field] == 1
            earlier = self.inter_feat[field] if field == self.uid_field else self._given_list(field)[:, 0]
            return torch.cat([own, earlier[alone]])
        places = self.inter_feat[TARGET]
        begins = places[self._starts[places] == places - 1]
        return torch.cat([own, self.flat[field][begins - 1]])

    def _given_list(self, field: str) -> Tensor:
        listed: Tensor = self.inter_feat[field + self._suffix]
        return listed

    def seen_before(self) -> tuple[Tensor, Tensor]:
        """Return, for every row, the items of the whole history before it: pairs of a row and an item."""
        if self.flat is None:
            lists = self._given_list(self._id_field("iid_field"))
            rows, columns = lists.nonzero(as_tuple=True)
            return rows, lists[rows, columns]
        places = self.inter_feat[TARGET]
        counts = places - self._starts[places]
        rows = torch.repeat_interleave(torch.arange(len(places), device=places.device), counts)
        offset = torch.arange(len(rows), device=places.device) - torch.repeat_interleave(
            counts.cumsum(0) - counts, counts
        )
        return rows, self.flat[self._id_field("iid_field")][self._starts[places][rows] + offset]

    def split_rows(self) -> list[np.ndarray[Any, Any] | None]:
        """Return the rows for training, validation and test; None for a part that is not wanted."""
        if self._row_parts is None:
            return super().split_rows()
        assert self.file_size_list is not None
        rows = [np.flatnonzero(self._row_parts == part) for part in range(len(self.file_size_list))]
        return [rows[0], None, rows[1]] if len(rows) == 2 else list(rows)

    def _forget(self, fields: Iterable[str]) -> None:
        gone = set(fields)
        super()._forget(gone | {name + self._suffix for name in gone})
        if self.flat is not None:
            kept = {name: column for name, column in self.flat.interaction.items() if name not in gone}
            self.flat = Interaction.of_columns(kept, len(self.flat))

    def to(self, device: torch.device | str) -> "Dataset":
        """Return the data set with its interactions and features on `device`."""
        made = super().to(device)
        assert isinstance(made, SequentialDataset)
        if self.flat is not None:
            made.flat, made._starts = self.flat.to(device), self._starts.to(device)
        return made


class DIENDataset(SequentialDataset):
    """A sequential data set whose histories come with as many items that the user did not choose there.

    The column `neg_item_id_list` holds, for each item of a history, another one, drawn once from the seed.
    """

    def data_augmentation(self) -> None:
        """Make the rows, and draw the items beside the histories."""
        super().data_augmentation()
        assert self.flat is not None
        item = self._id_field("iid_field")
        negative = str(self.config["NEG_PREFIX"]) + item
        chosen = self.flat[item]
        if self.item_num < 3:
            raise DataError("there is one item only, so that there is nothing that a user did not choose")
        generator = torch.Generator().manual_seed(fold_seed(self.config["seed"], "negative histories"))
        drawn = torch.randint(1, self.item_num - 1, chosen.shape, generator=generator)
        self.flat[negative] = drawn + (drawn >= chosen)
        self.copy_field_property(negative, item)
        self._declare_list(negative)


def _last_values(matrix: Tensor, width: int) -> Tensor:
    """Return the last values of each row of a matrix padded behind, in a matrix of exactly `width` columns."""
    lengths = (matrix != 0).flatten(2).any(-1).sum(1) if matrix.dim() > 2 else (matrix != 0).sum(dim=1)
    skip = (lengths - width).clamp(min=0)
    steps = torch.arange(width)
    places = skip.unsqueeze(1) + steps
    inside = steps < lengths.clamp(max=width).unsqueeze(1)
    values = matrix[torch.arange(len(matrix)).unsqueeze(1), places.clamp(max=matrix.shape[1] - 1)]
    return values.masked_fill(~inside.view(*inside.shape, *[1] * (values.dim() - 2)), 0)
