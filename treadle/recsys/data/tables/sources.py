"""Where the tables of a data set come from: files in its folder, or what the program hands over."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import ConfigError, DataError, check_choice, did_you_mean
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.tables import demo_shop
from treadle.recsys.data.tables.columns import Table, stacked
from treadle.recsys.data.tables.filters import Tables
from treadle.recsys.data.tables.reader import COMPRESSED, EMPTY, ENDINGS, ReadSettings, Selection, find_file, read_table
from treadle.recsys.data.tables.text_files import LAYOUTS, POLICIES, read_interactions

SUFFIXES = ("inter", "user", "item", "kg", "link")
"""What the tables of a data set are called, beside those of `additional_feat_suffix`."""
PARTS = {2: ("train", "test"), 3: ("train", "valid", "test")}
"""What the names of a split that comes with the data mean, by how many there are."""

ORIGINS = {
    "ml-100k": (
        " (MovieLens 100K is at grouplens.org/datasets/movielens/100k; docs/recsys-data.md says how its u.data becomes "
        "ml-100k.inter)"
    )
}
"""Where data sets come from that pages and examples name."""


def require_folder(name: str, folder: Path) -> None:
    """Make sure that the folder of a data set is there.

    Raises:
        DataError: It is not.
    """
    if not folder.is_dir():
        raise DataError(
            f"the folder {folder} of the data set {name!r} is not there; put its files there, or set data_path, or the "
            f"environment variable TREADLE_DATA, to the folder that holds {name}/{ORIGINS.get(name, '')}; the data set "
            f"{demo_shop.NAME!r} needs no files"
        )


class Sources:
    """The places of all tables of a data set, found before anything is read.

    Args:
        config: The settings.
        given: Tables that the program hands over, by the suffix of the file that they stand for; for interactions that
            are split already, a list of them.
        needed: Suffixes of further tables that this kind of data set cannot do without.

    Attributes:
        name: The name of the data set.
        folder: Where files are looked for.
        places: For each suffix its file or table; for interactions a list of them, one for each part.
        split: Whether the interactions come in parts.

    Raises:
        ConfigError: A setting cannot be meant.
        DataError: A file that is asked for is not there.
    """

    def __init__(self, config: Config, given: Mapping[str, Any], needed: tuple[str, ...] = ()) -> None:
        self._config = config
        self.name = str(config["dataset"])
        self.folder = Path(config["data_path"])
        self._layout = str(config["inter_layout"])
        check_choice("inter_layout", config["inter_layout"], LAYOUTS)
        self._given = dict(given)
        if self.name == demo_shop.NAME and "inter" not in given and not self.folder.is_dir():
            self._given["inter"] = demo_shop.purchases()
        self.reading = make_read_settings(config)
        self._check_suffixes()
        parts = self._given.get("inter")
        names = config["benchmark_filename"]
        self.split = isinstance(parts, (list, tuple)) or (parts is None and names is not None)
        self.places: dict[str, list[Any]] = {"inter": self._interactions(names)}
        for suffix in ("user", "item", *(config["additional_feat_suffix"] or ())):
            place = self._place(suffix, optional=suffix in ("user", "item"))
            if place is not None:
                self.places[suffix] = [place]
        for suffix in needed:
            self.places[suffix] = [self._needed(suffix)]
        unknown = set(self._given) - set(self.places)
        if unknown:
            known = ", ".join(["inter", "user", "item", *needed])
            raise ConfigError(
                f"a table is handed over as {sorted(unknown)[0]!r}; there are {known} and the names in "
                "additional_feat_suffix"
            )

    def _check_suffixes(self) -> None:
        """Make sure that `load_col` and `unload_col` name tables that there can be."""
        known = (*SUFFIXES, *(self._config["additional_feat_suffix"] or ()))
        for setting in ("load_col", "unload_col"):
            value = self._config[setting]
            if value is not None and not isinstance(value, Mapping):
                raise ConfigError(f"{setting}={value!r} must map a suffix to fields, such as {{'inter': ['user_id']}}")
            for suffix in value or ():
                if suffix not in known:
                    near = did_you_mean(str(suffix), known) or "; add it to additional_feat_suffix"
                    raise ConfigError(f"{setting} names the table {suffix!r}, which is none of {list(known)}{near}")

    def _needed(self, suffix: str) -> Any:
        """Return where a table is that this kind of data set cannot do without."""
        name = f"{self.name}.{suffix}"
        place = self._given[suffix] if suffix in self._given else find_file(self.folder, name)
        if place is None:
            raise DataError(f"{self.folder / name} is not there; a knowledge graph needs it")
        return Path(place) if isinstance(place, str) else place

    def _interactions(self, names: Any) -> list[Any]:
        if "inter" in self._given:
            parts = self._given["inter"]
            return list(_checked_parts(parts, "inter")) if self.split else [parts]
        if names is None:
            return [self._file(self.name, "inter")]
        if not isinstance(names, (list, tuple)):
            raise ConfigError(f"benchmark_filename={names!r} must be a list, such as ['train', 'valid', 'test']")
        return [
            self._file(f"{self.name}.{part}", "inter", part) for part in _checked_parts(names, "benchmark_filename")
        ]

    def _file(self, stem: str, suffix: str, part: str | None = None) -> Path:
        require_folder(self.name, self.folder)
        if self._layout == "atomic":
            stems = [f"{stem}.{suffix}"]
        else:
            stems = [f"{part or stem}.txt", f"{stem}.txt", f"{stem}.{suffix}"]
        endings = ENDINGS if self._layout == "atomic" else COMPRESSED
        found = next((path for one in stems if (path := find_file(self.folder, one, endings))), None)
        if found is None:
            present = sorted(path.name for path in self.folder.iterdir())
            near = did_you_mean(stems[0], present) or f"; the folder has {present}"
            raise DataError(f"{self.folder / stems[0]} is not there, compressed or as a table neither{near}")
        return found

    def _place(self, suffix: str, *, optional: bool) -> Any:
        """Return where the table of a suffix is, if it is to be loaded."""
        if suffix in self._given:
            return self._given[suffix]
        selection = self.selection(suffix)
        if selection is None or not self.folder.is_dir():
            return None
        found = find_file(self.folder, f"{self.name}.{suffix}")
        if found is None and (selection.load is not None or not optional):
            setting = "load_col" if selection.load is not None else "additional_feat_suffix"
            raise DataError(f"{setting} asks for {self.name}.{suffix}, which is not in {self.folder}")
        return found

    def selection(self, suffix: str) -> Selection | None:
        """Return which fields of a table are loaded; None if it is not.

        What `load_col` says by default holds for atomic files only: of a table that is handed over, and of files
        without a header, all is loaded.
        """
        config = self._config
        load, unload = config["load_col"], config["unload_col"]
        if suffix in self._given:
            load = load if "load_col" in config.external_config_dict else None
        elif suffix == "inter" and self._layout != "atomic" and load == config.internal_config_dict.get("load_col"):
            # Such files have users, items and places alone. Settings that come from a file have defaults among them.
            load = None
        left_out = tuple((unload or {}).get(suffix) or ())
        if load is None:
            return Selection(None, left_out)
        if suffix not in load:
            return None
        if load[suffix] == "*":
            return Selection(None, left_out)
        if left_out:
            raise ConfigError(f"load_col and unload_col both name fields of {suffix!r}; leave one of them out")
        return Selection(tuple(load[suffix]), ())

    def read(self, suffix: str) -> Table | None:
        """Read the table, or all parts of it, that has this suffix; None if nothing of it is loaded."""
        selection = self.selection(suffix)
        if suffix not in self.places or selection is None:
            return None
        name = f"{self.name}.{suffix}"
        tables = [self._read_one(place, selection, name, suffix) for place in self.places[suffix]]
        there = [table for table in tables if table is not None]
        if len(there) < len(tables) or not there:
            return None
        self.sizes = [len(table) for table in there]
        return there[0] if len(there) == 1 else stacked(there, name)

    def _read_one(self, place: Any, selection: Selection, name: str, suffix: str) -> Table | None:
        if isinstance(place, str):
            place = Path(place)
        if suffix == "inter" and self._layout != "atomic" and isinstance(place, Path):
            config = self._config
            fields = {"user": config["USER_ID_FIELD"], "item": config["ITEM_ID_FIELD"], "time": config["TIME_FIELD"]}
            bad = self.reading.on_bad_line
            place, name = read_interactions(place, self._layout, **fields, on_bad_line=bad), place.name
        return read_table(place, selection, self.reading, name=name)


def _checked_parts(parts: Any, what: str) -> Any:
    if len(parts) not in PARTS:
        raise ConfigError(f"{what} has {len(parts)} parts; give two, train and test, or three, train, valid and test")
    return parts


def make_read_settings(config: Config) -> ReadSettings:
    """Return how the settings say tables are read.

    Raises:
        ConfigError: `seq_len` or `field_types` is no mapping, `missing_values` no list, or `on_bad_line` no policy.
    """
    for name in ("seq_len", "field_types"):
        if config[name] is not None and not isinstance(config[name], Mapping):
            raise ConfigError(f"{name}={config[name]!r} must map fields to values")
    missing = config["missing_values"] or []
    if not isinstance(missing, (list, tuple)):
        raise ConfigError(f"missing_values={missing!r} must be a list of texts, such as ['NA', 'null']")
    check_choice("on_bad_line", config["on_bad_line"], POLICIES)
    ids = [config[name] for name in ("USER_ID_FIELD", "ITEM_ID_FIELD")]
    knowledge = ("HEAD_ENTITY_ID_FIELD", "TAIL_ENTITY_ID_FIELD", "RELATION_ID_FIELD", "ENTITY_ID_FIELD")
    ids += [config[name] for name in knowledge]
    return ReadSettings(
        field_separator=config["field_separator"],
        seq_separator=config["seq_separator"],
        encoding=config["encoding"],
        ids=frozenset(name for name in ids if name),
        time_field=config["TIME_FIELD"],
        label_field=config["LABEL_FIELD"],
        field_types=config["field_types"] or {},
        seq_len=config["seq_len"] or {},
        missing=frozenset({EMPTY, *map(str, missing)}),
        on_bad_line=str(config["on_bad_line"]),
    )


def read_tables(config: Config, sources: Sources) -> Tables:
    """Read all tables of a data set.

    Raises:
        ConfigError: Only one of the two id fields is set.
        DataError: A table cannot be read, or lacks its ids.
    """
    user, item = config["USER_ID_FIELD"], config["ITEM_ID_FIELD"]
    if (user is None) != (item is None):
        raise ConfigError("USER_ID_FIELD and ITEM_ID_FIELD are set together or not at all")
    inter = sources.read("inter")
    if inter is None:
        raise DataError(f"no field of the interactions of {config['dataset']!r} is loaded; see load_col")
    sizes = sources.sizes
    tables = Tables(inter, user_field=user, item_field=item, time_field=config["TIME_FIELD"])
    for name in (user, item):
        if name is not None:
            inter[name]  # raises, and says which columns there are
    tables.user, tables.item = (_features(sources, *pair) for pair in (("user", user), ("item", item)))
    for suffix in config["additional_feat_suffix"] or ():
        table = sources.read(suffix)
        if table is not None:
            tables.others[suffix] = table
    sources.sizes = sizes
    _check_field_types(config["field_types"] or {}, tables)
    return tables


def _check_field_types(given: Mapping[str, Any], tables: Tables) -> None:
    """Make sure that `field_types` names no field that is nearly one of those that are there."""
    loaded = {name for table in tables.all() for name in table.columns}
    for name in given:
        near = "" if name in loaded else did_you_mean(name, sorted(loaded))
        if near:
            raise ConfigError(f"field_types names the field {name!r}, which is not loaded{near}")


def _features(sources: Sources, suffix: str, id_field: str | None) -> Table | None:
    """Read what is known of users or items; of several rows with one id the first counts."""
    table = sources.read(suffix)
    if table is None:
        return None
    if id_field is None:
        raise ConfigError(f"{table.name} is loaded, but {suffix.upper()}_ID_FIELD is not set")
    first = np.unique(table[id_field].values, return_index=True)[1]
    return table if len(first) == len(table) else table.take(np.sort(first))
