"""Reading tables: atomic files, Parquet, CSV, and tables that are in memory already."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from torch import Tensor

from treadle.errors import DataError, did_you_mean
from treadle.recsys.data.tables.arrow import find_tokens, infer_type, is_boolean_type, to_column
from treadle.recsys.data.tables.columns import Table
from treadle.recsys.data.tables.text_files import (
    MISSING_NUMBERS,
    TextLayout,
    feature_type,
    good_lines,
    opened,
    read_csv_header,
    read_header,
    read_rows,
)
from treadle.recsys.enums import FeatureType
from treadle.recsys.optional import pyarrow

ARROW_SUFFIXES = (".parquet", ".feather", ".arrow")
CSV_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
COMPRESSED = ("", ".gz", ".zst", ".bz2")
EMPTY = ""
"""Text that always stands for a missing value."""
logger = logging.getLogger(__name__)
ENDINGS = (*COMPRESSED, *ARROW_SUFFIXES, *CSV_SUFFIXES)
"""What may stand behind `name.inter`, in the order in which it is looked for."""


@dataclass(frozen=True)
class ReadSettings:
    """How tables are read.

    Attributes:
        field_separator: What stands between the fields of an atomic file.
        seq_separator: What stands between the values of a sequence.
        encoding: The encoding of text.
        ids: Fields that are tokens, whatever a table without typed names holds in them.
        time_field: The field that is read as whole numbers if it can be.
        label_field: The field that is a number even where such a table holds truth values in it.
        field_types: Types of further fields of such tables.
        seq_len: The most values of sequence fields.
        missing: Texts of a file that stand for a missing token.
        on_bad_line: What becomes of a line of a text file that cannot be read: "error" or "skip".
    """

    field_separator: str = "\t"
    seq_separator: str = " "
    encoding: str = "utf-8"
    ids: frozenset[str] = frozenset()
    time_field: str | None = None
    label_field: str | None = None
    field_types: Mapping[str, str] = field(default_factory=dict)
    seq_len: Mapping[str, int] = field(default_factory=dict)
    missing: frozenset[str] = frozenset({EMPTY})
    on_bad_line: str = "error"


@dataclass(frozen=True)
class Selection:
    """Which fields of a table are loaded.

    Attributes:
        load: The fields to load; None for all.
        unload: The fields to leave out.
    """

    load: tuple[str, ...] | None = None
    unload: tuple[str, ...] = ()

    def chosen(self, fields: Iterable[str], name: str) -> list[str]:
        """Return which of `fields` are loaded, in the order of the table.

        Raises:
            DataError: A field is asked for that the table does not have.
        """
        present = list(fields)
        for wanted in (*(self.load or ()), *self.unload):
            if wanted not in present:
                near = did_you_mean(wanted, present) or f"; it has {present}"
                setting = "load_col" if wanted in (self.load or ()) else "unload_col"
                raise DataError(f"{setting} names the field {wanted!r} of {name}, which is not there{near}")
        return [one for one in present if (self.load is None or one in self.load) and one not in self.unload]


def find_file(folder: Path, stem: str, endings: Iterable[str] = ENDINGS) -> Path | None:
    """Return the first file that is there of `stem` with one of the known endings."""
    return next((path for ending in endings if (path := folder / f"{stem}{ending}").is_file()), None)


def read_table(given: Any, selection: Selection, reading: ReadSettings, *, name: str) -> Table | None:
    """Return a table, from a file or from memory; None if none of its fields is loaded.

    Args:
        given: A path, an Arrow table, a pandas data frame, or a dict of columns.
        selection: Which fields to load.
        reading: How to read them.
        name: What to call it in messages.

    Raises:
        DataError: It cannot be read, a field is not there, or a type is not known.
    """
    if not isinstance(given, Path):
        return _selected(_arrow_table(given, name), selection, reading, name)
    if given.name.endswith(ARROW_SUFFIXES):
        return _selected(_read_arrow_file(given, selection), selection, reading, given.name)
    return (_read_csv if given.name.endswith(CSV_SUFFIXES) else _read_text)(given, selection, reading)


def _selected(
    data: Any, selection: Selection, reading: ReadSettings, name: str, missing: frozenset[str] = frozenset({EMPTY})
) -> Table | None:
    """Return the columns of an Arrow table that are loaded, each of the type that somebody says, or that it has."""
    _check_types(data.column_names, name)
    kinds = {column: _declared(column, data.schema.field(column).type, reading, name) for column in data.column_names}
    fields = {bare_name(column): column for column in data.column_names}
    chosen = selection.chosen(fields, name)
    data = data.select([fields[one] for one in chosen]).rename_columns(chosen)
    return _finished(data, {one: kinds[fields[one]] for one in chosen}, reading, name, missing)


def _finished(
    data: Any, kinds: dict[str, FeatureType], reading: ReadSettings, name: str, missing: frozenset[str]
) -> Table | None:
    if not kinds:
        return None
    table = Table(name)
    for one, kind in kinds.items():
        column = to_column(
            data[one], kind, name=f"field {one!r} of {name}", separator=reading.seq_separator, missing=missing
        )
        if one in reading.seq_len and kind.is_sequence:
            column = column.shortened(int(reading.seq_len[one]))
        table.columns[one] = column
    return table


def _read_text(path: Path, selection: Selection, reading: ReadSettings) -> Table | None:
    """Read an atomic file."""
    header = read_header(path, reading)
    kinds = {name: header[name] for name in selection.chosen(header, path.name)}

    def read(source: Path | BytesIO) -> Table | None:
        data = read_rows(source, list(header), kinds, reading) if kinds else None
        return _finished(data, kinds, reading, path.name, reading.missing)

    return _with_bad_line_search(path, read, TextLayout(list(header), reading.field_separator), kinds, reading)


def _with_bad_line_search(
    path: Path,
    read: Callable[[Path | BytesIO], Table | None],
    layout: TextLayout,
    kinds: Mapping[str, FeatureType],
    reading: ReadSettings,
) -> Table | None:
    """Read a text file; if that fails, say which line it is, or leave out such lines."""
    arrow = pyarrow()
    try:
        table = read(path)
        _log_text_values(table, path.name, reading)
        return table
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except (arrow.ArrowInvalid, DataError) as error:
        good = good_lines(path, layout, kinds, reading)
        if good is not None:
            table = read(good)
            _log_text_values(table, path.name, reading)
            return table
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read: {error}") from error


def _log_text_values(table: Table | None, name: str, reading: ReadSettings) -> None:
    """Say which tokens of a file RecBole would read as missing ones: ids and rows are then not the same there."""
    words = MISSING_NUMBERS - reading.missing
    for field_name, column in ({} if table is None else table.columns).items():
        found = find_tokens(column, words) if column.kind is FeatureType.TOKEN else []
        if found:
            logger.warning(
                "field %r of %s has the tokens %s, which RecBole reads as missing; set missing_values to %s to do the "
                "same",
                field_name,
                name,
                ", ".join(map(repr, found)),
                found,
            )


def bare_name(column: str) -> str:
    """Return the name of a column without its type.

    >>> bare_name("rating:float"), bare_name("rating")
    ('rating', 'rating')
    """
    name, colon, kind = column.rpartition(":")
    return name if colon and kind in {one.value for one in FeatureType} else column


def _declared(column: str, arrow_type: Any, reading: ReadSettings, name: str) -> FeatureType:
    """Return what a column of a table holds: by its typed name, by the settings, or by what is in it."""
    stated = _stated(column, reading, name)
    if stated is not None:
        return stated
    return (
        FeatureType.FLOAT if column == reading.label_field and is_boolean_type(arrow_type) else infer_type(arrow_type)
    )


def _stated(column: str, reading: ReadSettings, name: str) -> FeatureType | None:
    """Return what a column holds, if its name or the settings say so."""
    bare = bare_name(column)
    if bare != column:
        return FeatureType(column.rpartition(":")[2])
    if bare in reading.field_types:
        return feature_type(reading.field_types[bare], bare, f"field_types, for {name}")
    return FeatureType.TOKEN if bare in reading.ids else None


def _check_types(columns: Sequence[str], name: str) -> None:
    """Make sure that no name of a column is meant to have a type, and has one that does not exist."""
    kinds = [kind.value for kind in FeatureType]
    others_typed = any(bare_name(column) != column for column in columns)
    for column in columns:
        bare, colon, kind = column.rpartition(":")
        if colon and bare and kind not in kinds and (others_typed or did_you_mean(kind, kinds)):
            feature_type(kind, bare, name)


def _read_arrow_file(path: Path, selection: Selection) -> Any:
    """Read only the columns that are asked for: a file may be larger than the memory."""
    arrow = pyarrow()
    try:
        if path.suffix == ".parquet":
            names = arrow.parquet.read_schema(path).names
            return arrow.parquet.read_table(path, columns=_wanted(names, selection, path.name))
        with arrow.memory_map(str(path)) as file:
            names = arrow.ipc.open_file(file).schema.names
        return arrow.feather.read_table(path, columns=_wanted(names, selection, path.name))
    except (arrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _read_csv(path: Path, selection: Selection, reading: ReadSettings) -> Table | None:
    """Read text with commas or tabs; what is said to be tokens stays text, so that '007' is not 7."""
    csv = pyarrow().csv
    separator = "\t" if ".tsv" in path.suffixes else ","
    names = read_csv_header(path, separator, reading.encoding)
    stated = {one: _stated(one, reading, path.name) for one in names}
    types = {one: pyarrow().string() for one, kind in stated.items() if kind is not None and kind.is_token}
    converts = csv.ConvertOptions(
        include_columns=_wanted(names, selection, path.name), column_types=types, null_values=sorted(MISSING_NUMBERS)
    )

    def read(source: Path | BytesIO) -> Table | None:
        with opened(source) as stream:
            reads, parses = csv.ReadOptions(encoding=reading.encoding), csv.ParseOptions(delimiter=separator)
            data = csv.read_csv(stream, reads, parses, converts)
        return _selected(data, selection, reading, path.name, reading.missing)

    kinds = {one: kind for one, kind in stated.items() if kind is not None}
    return _with_bad_line_search(path, read, TextLayout(names, separator, quoted=True), kinds, reading)


def _wanted(names: list[str], selection: Selection, name: str) -> list[str]:
    fields = {bare_name(one): one for one in names}
    return [fields[one] for one in selection.chosen(fields, name)]


def _arrow_table(given: Any, name: str) -> Any:
    arrow = pyarrow()
    if isinstance(given, arrow.Table):
        return given
    if isinstance(given, Mapping):
        return _of_columns(given, name)
    if hasattr(given, "__arrow_c_stream__"):
        return arrow.table(given)
    if hasattr(given, "columns") and hasattr(given, "to_numpy"):
        return arrow.Table.from_pandas(given, preserve_index=False)
    raise DataError(
        f"{name} is a {type(given).__name__}; give a path, an Arrow table, a data frame or a dict of columns"
    )


def _of_columns(given: Mapping[Any, Any], name: str) -> Any:
    columns = {
        str(key): column.numpy(force=True) if isinstance(column, Tensor) else column for key, column in given.items()
    }
    arrow = pyarrow()
    try:
        return arrow.table(columns)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError) as error:
        raise DataError(f"the columns {list(columns)} of {name} are no table: {error}") from error
