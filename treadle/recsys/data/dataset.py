"""A data set of interactions, with what is known of users and items."""

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.recsys.config.configurator import Config
from treadle.recsys.config.evaluation import time_points
from treadle.recsys.data.dataset_steps import DatasetSteps, find_filter
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.split import (
    group_rows,
    hold_out,
    leave_one_out,
    ordered_rows,
    split_at_moments,
    split_by_ratio,
    split_by_time,
)
from treadle.recsys.data.tables.id_map import PerField, Vocabulary
from treadle.recsys.data.tables.pipeline import Prepared, prepare
from treadle.recsys.data.tables.sources import PARTS, Sources
from treadle.recsys.enums import FeatureSource, FeatureType
from treadle.recsys.optional import scipy_sparse

NAMES = ("train", "valid", "test")
FORMS = ("coo", "csr")
"""Of matrices."""


class Dataset(DatasetSteps):
    """Interactions of users with items, filtered, numbered and filled as the settings say.

    Ids of tokens begin at 1; 0 is padding. Numbers are of 32 bit, times of 64.

    Args:
        config: The settings.
        tables: Tables to use in the place of files, by suffix: `inter`, `user`, `item`. A table is a path, an Arrow
            table, a pandas data frame or a dict of columns; interactions that are split already are a list of tables.
        prepared: A data set that was prepared before.

    Attributes:
        dataset_name: The name of the data set.
        inter_feat: The interactions.
        user_feat: A row for each user id, if there are features of users.
        item_feat: A row for each item id, if there are features of items.
        uid_field, iid_field, label_field, time_field: The names of the columns with user, item, label and time.
        field2type: What each field holds.
        field2source: Which table each field is from.
        field2seqlen: The most values of each field in one row.
        field2bucketnum: How many buckets each field of numbers has.
        field2id_token: For each field of tokens, the token of each id.
        field2token_id: For each field of tokens, the id of each token.

    Raises:
        ConfigError: A setting cannot be meant for this data.
        DataError: The data cannot be used.
    """

    inter_feat: Interaction
    needed_tables: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the tables beside those of interactions, users and items that this kind of data set needs."""

    def __init__(
        self, config: Config, *, tables: Mapping[str, Any] | None = None, prepared: Prepared | None = None
    ) -> None:
        self._describe(config)
        self._numerical = set(config["numerical_features"] or ())
        if prepared is None:
            prepared = self.prepare(config, Sources(config, tables or {}, self.needed_tables))
        self.prepared = prepared
        self.field2type = dict(prepared.types)
        self.field2source = dict(prepared.sources)
        self.field2seqlen: dict[str, Any] = dict(prepared.lengths)
        self.field2bucketnum = dict(prepared.buckets)
        self._vocabularies = {name: Vocabulary(name, tokens) for name, tokens in prepared.tokens.items()}
        self._features = dict(prepared.features)
        self.inter_feat = self._features.pop("inter")
        self.user_feat = self._features.pop("user", None)
        self.item_feat = self._features.pop("item", None)
        self.file_size_list = prepared.parts

    def _describe(self, config: Config) -> None:
        """Take from the settings what the data is called."""
        self.config = config
        self.dataset_name = str(config["dataset"])
        self.uid_field: str | None = config["USER_ID_FIELD"]
        self.iid_field: str | None = config["ITEM_ID_FIELD"]
        self.label_field: str | None = config["LABEL_FIELD"]
        self.time_field: str | None = config["TIME_FIELD"]

    @classmethod
    def prepare(cls, config: Config, sources: Sources) -> Prepared:
        """Return the tables of a data set of this kind, read and prepared."""
        return prepare(config, sources, filtering=find_filter(cls, config))

    def __getattr__(self, name: str) -> Any:
        features = self.__dict__.get("_features", {})
        if name.endswith("_feat") and name.removesuffix("_feat") in features:
            return features[name.removesuffix("_feat")]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def field2id_token(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """For each field of tokens, the token of each id."""
        return PerField(self._vocabularies, "tokens")

    @property
    def field2token_id(self) -> Mapping[str, dict[str, int]]:
        """For each field of tokens, the id of each token."""
        return PerField(self._vocabularies, "ids")

    def _known(self, field: str) -> str:
        if field not in self.field2type:
            near = did_you_mean(field, self.field2type) or f"; it has {list(self.field2type)}"
            raise DataError(f"the data set {self.dataset_name!r} has no field {field!r}{near}")
        return field

    def num(self, field: str) -> int:
        """Return how many ids a field of tokens has, padding included; of numbers, how many values or buckets."""
        if not self.field2type[self._known(field)].is_token:
            length: int = self.field2bucketnum[field] if field in self._numerical else self.field2seqlen[field]
            return length
        return len(self.vocabulary(field))

    def vocabulary(self, field: str) -> Vocabulary:
        """Return the tokens of a field.

        Raises:
            DataError: There is no such field, or it holds numbers.
        """
        self._known(field)
        if field not in self._vocabularies:
            raise DataError(f"the field {field!r} holds numbers, not tokens")
        return self._vocabularies[field]

    @property
    def fingerprints(self) -> dict[str, str]:
        """What tells the tokens of each field, and their ids, from others: a model has weights for any of them."""
        return {field: vocabulary.fingerprint for field, vocabulary in self._vocabularies.items()}

    @property
    def dataset_path(self) -> str:
        """The folder of the data's files."""
        return str(self.config["data_path"])

    @property
    def user_num(self) -> int:
        """How many user ids there are, padding included."""
        return self.num(self._id_field("uid_field"))

    @property
    def item_num(self) -> int:
        """How many item ids there are, padding included."""
        return self.num(self._id_field("iid_field"))

    def _id_field(self, name: str) -> str:
        field = getattr(self, name)
        if field is None:
            raise ConfigError(f"this needs {'USER' if name == 'uid_field' else 'ITEM'}_ID_FIELD, which is not set")
        return str(field)

    @property
    def inter_num(self) -> int:
        """How many interactions there are."""
        return len(self)

    @property
    def avg_actions_of_users(self) -> float:
        """How many interactions a user has on average."""
        return self.inter_num / max(len(self.user_counter), 1)

    @property
    def avg_actions_of_items(self) -> float:
        """How many interactions an item has on average."""
        return self.inter_num / max(len(self.item_counter), 1)

    @property
    def sparsity(self) -> float:
        """The share of all pairs of users and items that are no interaction."""
        return 1 - self.inter_num / self.user_num / self.item_num

    def fields(
        self, ftype: Iterable[FeatureType] | None = None, source: Iterable[FeatureSource] | None = None
    ) -> list[str]:
        """Return the fields of these types and sources; of all, where none are named."""
        kinds = set(FeatureType) if ftype is None else set(ftype)
        places: set[Any] = set(FeatureSource) if source is None else set(source)
        return [name for name, kind in self.field2type.items() if kind in kinds and self.field2source[name] in places]

    @property
    def float_like_fields(self) -> list[str]:
        """The fields of numbers."""
        return self.fields(ftype=(FeatureType.FLOAT, FeatureType.FLOAT_SEQ))

    @property
    def token_like_fields(self) -> list[str]:
        """The fields of tokens."""
        return self.fields(ftype=(FeatureType.TOKEN, FeatureType.TOKEN_SEQ))

    @property
    def seq_fields(self) -> list[str]:
        """The fields of sequences."""
        return self.fields(ftype=(FeatureType.TOKEN_SEQ, FeatureType.FLOAT_SEQ))

    @property
    def non_seq_fields(self) -> list[str]:
        """The fields with one value a row."""
        return self.fields(ftype=(FeatureType.TOKEN, FeatureType.FLOAT))

    def set_field_property(self, field: str, field_type: FeatureType, field_source: Any, field_seqlen: Any) -> None:
        """Make a new field known."""
        self.field2type[field] = field_type
        self.field2source[field] = field_source
        self.field2seqlen[field] = field_seqlen

    def copy_field_property(self, dest_field: str, source_field: str) -> None:
        """Make a new field known that is like another one."""
        self.set_field_property(
            dest_field, self.field2type[source_field], self.field2source[source_field], self.field2seqlen[source_field]
        )
        if source_field in self._vocabularies:
            self._vocabularies[dest_field] = self._vocabularies[source_field]

    def token2id(self, field: str, tokens: Any) -> Any:
        """Return the id of a token, or an array with the id of each of several.

        Raises:
            DataError: A token is not in the data.
        """
        vocabulary = self.vocabulary(field)
        if isinstance(tokens, (str, int, np.integer)):
            return vocabulary.id_of(tokens)
        return vocabulary.ids_of(tokens)

    def id2token(self, field: str, ids: Any) -> Any:
        """Return the token of an id, or an array with the token of each of several.

        Raises:
            DataError: An id is out of range.
        """
        return self.vocabulary(field).tokens_of(ids)

    def counter(self, field: str) -> Counter[int]:
        """Return how often each id of a field occurs in the interactions."""
        if field not in self.inter_feat or self.field2type[field] is not FeatureType.TOKEN:
            raise DataError(f"the interactions have no field {field!r} with one token a row")
        counts = torch.bincount(self.inter_feat[field].cpu())
        there = counts.nonzero().flatten()
        return Counter(dict(zip(there.tolist(), counts[there].tolist(), strict=True)))

    @property
    def user_counter(self) -> Counter[int]:
        """How often each user occurs."""
        return self.counter(self._id_field("uid_field"))

    @property
    def item_counter(self) -> Counter[int]:
        """How often each item occurs."""
        return self.counter(self._id_field("iid_field"))

    def get_user_feature(self) -> Interaction:
        """Return what is known of users: a row for each id."""
        if self.user_feat is not None:
            return self.user_feat
        return Interaction({self._id_field("uid_field"): torch.arange(self.user_num)})

    def get_item_feature(self) -> Interaction:
        """Return what is known of items: a row for each id."""
        if self.item_feat is not None:
            return self.item_feat
        return Interaction({self._id_field("iid_field"): torch.arange(self.item_num)})

    def get_preload_weight(self, field: str) -> np.ndarray[Any, Any]:
        """Return the pretrained vectors of an id field: a row for each id.

        Raises:
            ConfigError: `preload_weight` does not name the field.
        """
        if field not in self.prepared.weights:
            raise ConfigError(f"preload_weight has no {field!r}; it has {list(self.prepared.weights)}")
        return self.prepared.weights[field]

    def join(self, interaction: Interaction) -> Interaction:
        """Add what is known of the users and items of an interaction, in place."""
        for features, field in ((self.user_feat, self.uid_field), (self.item_feat, self.iid_field)):
            if features is not None and field in interaction:
                ids = interaction[field]
                # By index_select: indexing with brackets takes several times as long on a CPU.
                known = features.take(ids.reshape(-1)).interaction.items()
                added = {name: column.view(*ids.shape, *column.shape[1:]) for name, column in known if name != field}
                interaction.update(added)
        return interaction

    def __getitem__(self, index: Any) -> Interaction:
        return self.join(self.inter_feat[index])

    def __len__(self) -> int:
        return len(self.inter_feat)

    def copy(self, new_inter_feat: Interaction) -> "Dataset":
        """Return the data set with other interactions, and all else the same."""
        made = copy.copy(self)
        made.inter_feat = new_inter_feat
        return made

    def to(self, device: torch.device | str) -> "Dataset":
        """Return the data set with its interactions and features on `device`."""
        made = self.copy(self.inter_feat.to(device))
        made.user_feat = None if self.user_feat is None else self.user_feat.to(device)
        made.item_feat = None if self.item_feat is None else self.item_feat.to(device)
        return made

    def shuffle(self) -> None:
        """Bring the interactions into an order that the seed decides, in place."""
        generator = torch.Generator().manual_seed(fold_seed(self.config["seed"], "shuffle"))
        self.inter_feat.shuffle(generator)

    def sort(self, by: Any, ascending: Any = True) -> None:
        """Sort the interactions, in place."""
        self.inter_feat.sort(by=by, ascending=ascending)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The columns of the interactions; a run that is resumed looks at some of their rows."""
        return tuple(self.inter_feat.interaction.values())

    def user_item_pairs(self) -> tuple[Tensor, Tensor]:
        """Return the user and the item of every interaction."""
        return self.inter_feat[self._id_field("uid_field")], self.inter_feat[self._id_field("iid_field")]

    # Interactions as matrices: sparse ones, and padded ones with the history of each user or item ---------------

    def _values(self, value_field: str | None) -> Tensor:
        """Return what `value_field` holds for every pair; ones without it."""
        users, _ = self.user_item_pairs()
        if value_field is None:
            return torch.ones(len(users))
        return self._pair_column(value_field)

    def _pair_column(self, field: str) -> Tensor:
        if field not in self.inter_feat:
            raise DataError(f"value_field={field!r} is no column of the interactions, {self.inter_feat.columns}")
        column: Tensor = self.inter_feat[field]
        return column

    def inter_matrix(self, form: str = "coo", value_field: str | None = None) -> Any:
        """Return the interactions as a sparse matrix of users and items.

        Args:
            form: "coo" or "csr".
            value_field: The field whose numbers stand in the matrix; 1 without it.

        Raises:
            ConfigError: There is no such form.
            DataError: There is no such field.
            MissingDependencyError: SciPy is not installed.
        """
        if form not in FORMS:
            raise ConfigError(f"form={form!r} does not exist; there are {list(FORMS)}")
        users, items = (ids.cpu().numpy() for ids in self.user_item_pairs())
        values = self._values(value_field).cpu().numpy()
        shape = (self.user_num, self.item_num)
        matrix = scipy_sparse().coo_matrix((values, (users, items)), shape=shape)
        return matrix if form == "coo" else matrix.tocsr()

    def history_item_matrix(
        self, value_field: str | None = None, max_history_len: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the items of each user: ids and values, padded with 0 to `[users, longest]`, and how many there are.

        Args:
            value_field: The field that gives the values; 1 without it.
            max_history_len: The most items of a user; of more, some are chosen by the seed.
        """
        users, items = self.user_item_pairs()
        return self._history(users, items, self.user_num, value_field, max_history_len)

    def history_user_matrix(
        self, value_field: str | None = None, max_history_len: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the users of each item, in the form of `history_item_matrix`."""
        users, items = self.user_item_pairs()
        return self._history(items, users, self.item_num, value_field, max_history_len)

    def _history(
        self, rows: Tensor, columns: Tensor, number: int, value_field: str | None, most: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        owners, others, values = (part.cpu().numpy() for part in (rows, columns, self._values(value_field)))
        counts = np.bincount(owners, minlength=number)
        width = int(counts.max(initial=0))
        if most is not None and most < width:
            generator = torch.Generator().manual_seed(fold_seed(self.config["seed"], "history"))
            mixed = torch.randperm(len(owners), generator=generator).numpy()
            owners, others, values, width = owners[mixed], others[mixed], values[mixed], most
        order = np.argsort(owners, kind="stable")
        position = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        order, position = order[position < width], position[position < width]
        ids, numbers = np.zeros((number, width), np.int64), np.zeros((number, width), np.float32)
        ids[owners[order], position] = others[order]
        numbers[owners[order], position] = values[order]
        lengths = np.minimum(counts, width)
        return torch.from_numpy(ids), torch.from_numpy(numbers), torch.from_numpy(lengths.astype(np.int64))

    # Dividing -----------------------------------------------------------------------------------------------

    def build(self, rows: Sequence[np.ndarray[Any, Any] | None] | None = None) -> list["Dataset | None"]:
        """Return the parts for training, validation and test, as `eval_args` says; None for a part that is not wanted.

        Args:
            rows: The rows of each part, if they are known already.

        Raises:
            ConfigError: The split needs a field that is not loaded.
            DataError: A part that is wanted has no rows.
        """
        divided = self.split_rows() if rows is None else rows
        parts = [None if own is None else self._part(own) for own in divided]
        for name, part in zip(NAMES, parts, strict=True):
            if part is not None and not len(part):
                wanted = self.config["benchmark_filename"] or self.config["eval_args"]["split"]
                raise DataError(
                    f"the {name} part of {self.dataset_name!r} has no rows: {len(self)} interactions are divided by "
                    f"{wanted}; give more data, or other shares"
                )
        return parts

    def _part(self, rows: np.ndarray[Any, Any]) -> "Dataset":
        part = self.copy(self.inter_feat[rows])
        part._drop_unused_columns()
        return part

    def _drop_unused_columns(self) -> None:
        for suffix, fields in (self.config["unused_col"] or {}).items():
            holder: Interaction | None = getattr(self, f"{suffix}_feat", None)
            for field in fields:
                if holder is None or field not in holder:
                    present = [] if holder is None else holder.columns
                    raise ConfigError(f"unused_col names {field!r} of {suffix!r}, which has {present}")
            if holder is not None:
                kept = {name: column for name, column in holder.interaction.items() if name not in fields}
                setattr(self, f"{suffix}_feat", Interaction.of_columns(kept, len(holder)))
                self._forget(fields)

    def _forget(self, fields: Iterable[str]) -> None:
        gone = set(fields)
        for name in ("field2type", "field2source", "field2seqlen"):
            setattr(self, name, {key: value for key, value in getattr(self, name).items() if key not in gone})

    def split_rows(self) -> list[np.ndarray[Any, Any] | None]:
        """Return the rows for training, validation and test; None for a part that is not wanted."""
        if self.file_size_list is not None:
            return _rows_of_parts(self.file_size_list)
        args = self.config["eval_args"]
        ((how, value),) = args["split"].items()
        by_time = args["order"] == "TO" or how in ("TS", "TP")
        times = self._times(f"eval_args has order {args['order']!r} and split {how!r}") if by_time else None
        rows = ordered_rows(len(self), times=times, seed=self.config.seed_of_split)
        parts = self._split(rows, how, value, times)
        if how == "LS":
            wanted = [True, value != "test_only", value != "valid_only"]
        elif how == "TP":
            first, second = time_points(value)
            wanted = [True, first < second, True]
        else:
            wanted = [share > 0 for share in value]
        return [rows[part] if want else None for part, want in zip(parts, wanted, strict=True)]

    def _split(self, rows: np.ndarray[Any, Any], how: str, value: Any, times: Any) -> list[np.ndarray[Any, Any]]:
        if how == "TP":
            return self._split_at(times[rows], value)
        if how in ("CU", "CI"):
            field = self._id_field("uid_field" if how == "CU" else "iid_field")
            return hold_out(self.inter_feat[field].cpu().numpy()[rows], value, seed=self.config.seed_of_split)
        grouped = how == "LS" or self.config["eval_args"]["group_by"] == "user"
        users = self.inter_feat[self._id_field("uid_field")].cpu().numpy()[rows] if grouped else None
        groups = group_rows(users, len(rows))
        if how == "RS":
            return split_by_ratio(groups, value)
        return leave_one_out(groups, value) if how == "LS" else split_by_time(groups, times[rows], value)

    def _split_at(self, times: np.ndarray[Any, Any], value: Any) -> list[np.ndarray[Any, Any]]:
        moments = time_points(value)
        if not times.min() < moments[0] <= moments[1] <= times.max():
            scaled = " (normalize_all and normalize_field bring times to 0..1)" if times.max() <= 1 else ""
            raise ConfigError(
                f"eval_args.split.TP={value!r} stands for {moments}, and the times of {self.dataset_name!r} go from "
                f"{times.min():.10g} to {times.max():.10g}{scaled}; choose moments between them"
            )
        return split_at_moments(times, moments)

    def _times(self, why: str) -> np.ndarray[Any, Any]:
        """Return the time of each interaction.

        Raises:
            ConfigError: It is not loaded, or no number.
        """
        field = self.time_field
        if field is None or field not in self.inter_feat:
            raise ConfigError(
                f"{why}, which needs the time of interactions, but TIME_FIELD={field!r} is not loaded; see load_col: "
                f"the interactions have {self.inter_feat.columns}"
            )
        if self.field2type[field] is not FeatureType.FLOAT:
            raise ConfigError(f"{why}, but TIME_FIELD={field!r} holds {self.field2type[field].value}, not numbers")
        column = self.inter_feat[field]
        times: np.ndarray[Any, Any] = (column if column.dim() == 1 else column[:, 0]).cpu().numpy()
        return times

    def __repr__(self) -> str:
        lines = [f"{self.dataset_name}: {self.inter_num} interactions"]
        if self.uid_field is not None and self.iid_field is not None:
            users, items = self.user_num - 1, self.item_num - 1
            lines.append(f"    {users} users with {self.avg_actions_of_users:.2f} interactions each")
            lines.append(f"    {items} items with {self.avg_actions_of_items:.2f} interactions each")
            lines.append(f"    {100 * self.sparsity:.4f}% of all pairs are none")
        lines.append(f"    fields: {', '.join(f'{name} ({kind.value})' for name, kind in self.field2type.items())}")
        return "\n".join(lines)


def _rows_of_parts(sizes: list[int]) -> list[np.ndarray[Any, Any] | None]:
    ends = np.cumsum(sizes)
    found: dict[str, np.ndarray[Any, Any]] = {
        name: np.arange(end - size, end) for name, size, end in zip(PARTS[len(sizes)], sizes, ends, strict=True)
    }
    return [found.get(name) for name in NAMES]
