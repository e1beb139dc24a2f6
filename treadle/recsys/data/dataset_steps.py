"""The steps of making and dividing a data set by RecBole's names, for classes that call or override them."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.split import group_rows, leave_one_out, split_by_ratio, split_by_time
from treadle.recsys.data.tables.arrow import from_frame, to_frame
from treadle.recsys.data.tables.columns import Table
from treadle.recsys.data.tables.filters import STEPS, Filters, Tables, filter_rows

HOLDERS = ("inter", "user", "item")
NOT_CALLED = frozenset(
    {
        "_add_auxiliary_relation",
        "_benchmark_presets",
        "_build_feat_name_list",
        "_check_kg",
        "_check_link",
        "_data_processing",
        "_discretization",
        "_download",
        "_fill_nan",
        "_filter_kg_by_triple_num",
        "_filter_link",
        "_from_scratch",
        "_get_field_from_config",
        "_get_preset",
        "_init_alias",
        "_load_additional_feat",
        "_load_data",
        "_load_feat",
        "_load_inter_feat",
        "_load_kg",
        "_load_link",
        "_load_user_or_item_feat",
        "_merge_item_and_entity",
        "_normalize",
        "_preload_weight_matrix",
        "_remap",
        "_remap_ID_all",
        "_set_alias",
        "_set_label_by_threshold",
        "_user_item_feat_preparation",
    }
)
"""Steps of RecBole's data sets that are none of Treadle's: an override of one would never be called."""


class DatasetSteps:
    """What a data set of your own may override or call, by RecBole's names; a part of `Dataset`."""

    config: Any
    inter_feat: Any
    uid_field: str | None
    iid_field: str | None
    time_field: str | None
    _filtered: "_Filtered | None" = None

    @property
    def logger(self) -> logging.Logger:
        """Where a data set says what it does."""
        return logging.getLogger("treadle.recsys")

    @property
    def benchmark_filename_list(self) -> Any:
        """The names of the parts of a data set that comes split; None for others."""
        return self.config["benchmark_filename"]

    def _check_field(self, *field_names: str) -> None:
        """Make sure that attributes such as `uid_field` and `time_field` are set.

        Raises:
            ConfigError: One is not.
        """
        for name in field_names:
            if getattr(self, name, None) is None:
                raise ConfigError(f"{name} of {type(self).__name__} is not set; see the settings that end with _FIELD")

    # Filtering ----------------------------------------------------------------------------------------------

    def _data_filtering(self) -> None:
        """Leave out rows as the settings say.

        An override is called once, before tokens are numbered: `inter_feat`, `user_feat` and `item_feat` are pandas
        data frames then, with tokens as text, and what they are when it returns is what stays. It may call this method,
        or a single step of it, such as `_filter_by_inter_num`, before or after.
        """
        self._frames().apply(self, filter_rows)

    def _filter_nan_user_or_item(self) -> None:
        self._frames().apply(self, STEPS["_filter_nan_user_or_item"])

    def _remove_duplication(self) -> None:
        self._frames().apply(self, STEPS["_remove_duplication"])

    def _filter_by_field_value(self) -> None:
        self._frames().apply(self, STEPS["_filter_by_field_value"])

    def _filter_inter_by_user_or_item(self) -> None:
        self._frames().apply(self, STEPS["_filter_inter_by_user_or_item"])

    def _filter_by_inter_num(self) -> None:
        self._frames().apply(self, STEPS["_filter_by_inter_num"])

    def _reset_index(self) -> None:
        """Number the rows of the data frames anew."""
        self._frames().reset_index(self)

    def _frames(self) -> "_Filtered":
        if self._filtered is None:
            raise ConfigError("rows are filtered while a data set is made; override _data_filtering to add a filter")
        return self._filtered

    # Dividing -----------------------------------------------------------------------------------------------

    def _change_feat_format(self) -> None:
        """Do nothing: once a data set is made, its tables are interactions."""

    def _drop_unused_col(self) -> None:
        """Do nothing: the parts of a data set are without the columns that `unused_col` names."""

    def split_by_ratio(self, ratios: Sequence[float], group_by: str | None = None) -> list[Any]:
        """Return the parts of the data by shares of the rows, or of the rows of each value of a field."""
        return self._split_rows(split_by_ratio(self._grouped(group_by), ratios))

    def leave_one_out(self, group_by: str | None, leave_one_mode: str) -> list[Any]:
        """Return the parts of the data, with the last rows of each value of a field held out.

        Args:
            group_by: The field, such as that of users.
            leave_one_mode: "valid_and_test", "valid_only" or "test_only".
        """
        modes = ("valid_and_test", "valid_only", "test_only")
        if group_by is None or leave_one_mode not in modes:
            raise ConfigError(
                f"leave_one_out({group_by!r}, {leave_one_mode!r}): give a field, and one of {list(modes)}"
            )
        return self._split_rows(leave_one_out(self._grouped(group_by), leave_one_mode))

    def time_based_split(self, ratios: Sequence[float], group_by: str | None) -> list[Any]:
        """Return the parts of the data, the test being what comes after one moment; rows are in the order of time."""
        times = self._times("time_based_split")
        return self._split_rows(split_by_time(self._grouped(group_by), times, ratios))

    def _grouped(self, group_by: str | None) -> Any:
        users = None if group_by is None else self.inter_feat[group_by].cpu().numpy()
        return group_rows(users, len(self.inter_feat))

    def _split_rows(self, rows: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
        return [self._part(own) for own in rows]

    def _part(self, rows: np.ndarray[Any, Any]) -> Any:
        raise NotImplementedError

    def _times(self, why: str) -> np.ndarray[Any, Any]:
        raise NotImplementedError


class _Filtered:
    """The tables of a data set that is being made, while its class shows them as data frames."""

    def __init__(self, tables: Tables, filters: Filters) -> None:
        self._tables, self._filters = tables, filters

    def show(self, dataset: Any) -> None:
        """Give a data set its tables as data frames."""
        for holder in HOLDERS:
            table: Table | None = getattr(self._tables, holder)
            setattr(dataset, f"{holder}_feat", None if table is None else to_frame(table))

    def take(self, dataset: Any) -> None:
        """Take the data frames of a data set for the tables."""
        for holder in HOLDERS:
            frame = getattr(dataset, f"{holder}_feat")
            if frame is not None:
                old = getattr(self._tables, holder)
                name = f"{dataset.dataset_name}.{holder}" if old is None else old.name
                setattr(self._tables, holder, from_frame(frame, name, dataset.field2type))

    def apply(self, dataset: Any, step: Callable[[Tables, Filters], None]) -> None:
        """Filter what a data set has in its data frames."""
        self.take(dataset)
        step(self._tables, self._filters)
        self.show(dataset)

    def reset_index(self, dataset: Any) -> None:
        """Number the rows of the data frames anew."""
        for holder in HOLDERS:
            frame = getattr(dataset, f"{holder}_feat")
            if frame is not None:
                setattr(dataset, f"{holder}_feat", frame.reset_index(drop=True))


def find_filter(kind: Any, config: Config) -> Callable[[Tables, Filters], None]:
    """Return what filters the tables of a class of data sets: its own `_data_filtering`, or that of all.

    Raises:
        ConfigError: The class overrides a step that nothing calls.
    """
    for name in sorted(NOT_CALLED):
        owner = next((one.__name__ for one in kind.__mro__ if name in vars(one)), None)
        if owner is not None:
            raise ConfigError(
                f"{owner}.{name} overrides a step of RecBole's that nothing calls here; override _data_filtering or "
                "build, or hand tables over: create_dataset(config, inter=...)"
            )
    if not has_custom_filter(kind):
        return filter_rows

    def filter_own(tables: Tables, filters: Filters) -> None:
        made = kind.__new__(kind)
        made._describe(config)
        there = {suffix: table for suffix, table in tables.by_suffix().items() if suffix in HOLDERS}
        made.field2type = {name: one.kind for table in there.values() for name, one in table.columns.items()}
        made.field2source = {name: suffix for suffix, table in there.items() for name in table.columns}
        made.field2seqlen = {}
        made._filtered = filtered = _Filtered(tables, filters)
        filtered.show(made)
        made._data_filtering()
        filtered.take(made)

    return filter_own


def has_custom_filter(kind: Any) -> bool:
    """Return whether a class of data sets has a `_data_filtering` of its own."""
    return kind._data_filtering is not DatasetSteps._data_filtering
