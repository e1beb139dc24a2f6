"""Reading tables: every field type, every form of file, and what is wrong with others."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest
import torch

from tests.recsys.data.small import INTER, General, settings, toy_config, write_table
from treadle.errors import ConfigError, DataError
from treadle.recsys import Config, Dataset, FeatureSource, FeatureType, create_dataset

ROWS = [("u1", "i1", 5, 10), ("u2", "i1", 3, 20), ("u1", "i2", 1, 30)]


def write_inter(folder: Path, name: str = "toy.inter") -> Path:
    return write_table(folder / "toy", name, INTER, ROWS)


def content(dataset: Dataset) -> dict[str, Any]:
    columns = {name: column.tolist() for name, column in dataset.inter_feat.interaction.items()}
    return {"columns": columns, "items": dataset.field2id_token["item_id"].tolist(), "types": dataset.field2type}


EXPECTED = {
    "columns": {"user_id": [1, 2, 1], "item_id": [1, 1, 2], "rating": [5.0, 3.0, 1.0], "timestamp": [10, 20, 30]},
    "items": ["[PAD]", "i1", "i2"],
    "types": {
        "user_id": FeatureType.TOKEN,
        "item_id": FeatureType.TOKEN,
        "rating": FeatureType.FLOAT,
        "timestamp": FeatureType.FLOAT,
    },
}


def test_an_atomic_file_is_read_with_its_types(tmp_path: Path) -> None:
    write_inter(tmp_path)
    assert content(create_dataset(toy_config(tmp_path))) == EXPECTED


def test_a_compressed_atomic_file_is_read(tmp_path: Path) -> None:
    path = write_inter(tmp_path)
    (tmp_path / "toy" / "toy.inter.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert content(create_dataset(toy_config(tmp_path))) == EXPECTED


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "user_id": ["u1", "u2", "u1"],
            "item_id": ["i1", "i1", "i2"],
            "rating": [5.0, 3.0, 1.0],
            "timestamp": [10, 20, 30],
        }
    )


@pytest.mark.parametrize("ending", ["parquet", "feather", "arrow", "csv", "csv.gz"])
def test_tables_of_other_formats_are_read_from_files(ending: str, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    path = tmp_path / "toy" / f"toy.inter.{ending}"
    if ending == "parquet":
        parquet.write_table(pa.Table.from_pandas(frame()), path)
    elif "csv" in ending:
        frame().to_csv(path, index=False)
    else:
        feather.write_feather(pa.Table.from_pandas(frame()), path)
    assert content(create_dataset(toy_config(tmp_path))) == EXPECTED


@pytest.mark.parametrize(
    "table",
    [
        frame(),
        pa.Table.from_pandas(frame()),
        {name: frame()[name].tolist() for name in frame()},
        frame().rename(columns={"rating": "rating:float", "item_id": "item_id:token"}),
    ],
    ids=["pandas", "arrow", "dict", "typed names"],
)
def test_tables_in_memory_are_taken_as_they_are(table: Any) -> None:
    config = Config(General, "toy")
    assert content(create_dataset(config, inter=table)) == EXPECTED


def test_a_path_can_be_handed_over(tmp_path: Path) -> None:
    path = write_inter(tmp_path, "anything.txt")
    config = Config(General, "toy")
    assert content(create_dataset(config, inter=path)) == EXPECTED
    assert content(create_dataset(config, inter=str(path))) == EXPECTED


def test_of_a_table_in_memory_load_col_is_obeyed_only_if_somebody_set_it() -> None:
    everything = create_dataset(Config(General, "toy"), inter=frame())
    assert everything.inter_feat.columns == ["user_id", "item_id", "rating", "timestamp"]
    config = Config(General, "toy", config_dict={"load_col": {"inter": ["user_id", "item_id"]}})
    assert create_dataset(config, inter=frame()).inter_feat.columns == ["user_id", "item_id"]


def test_ids_that_are_numbers_are_tokens_all_the_same() -> None:
    table = pd.DataFrame({"user_id": [7, 8, 7], "item_id": [1.0, 2.0, np.nan], "age": [30, 40, 50]})
    dataset = create_dataset(Config(General, "toy", config_dict={"field_types": {"age": "token"}}), inter=table)
    assert dataset.field2id_token["item_id"].tolist() == ["[PAD]", "1", "2"]
    assert dataset.field2id_token["age"].tolist() == ["[PAD]", "30", "40"]
    assert len(dataset) == 2


def test_sequences_are_split_cut_and_padded(tmp_path: Path) -> None:
    write_inter(tmp_path)
    header = ("item_id:token", "title:token_seq", "vector:float_seq", "price:float")
    rows = [("i1", "toy  story", "0.5 1.5 2.5", 3), ("i2", None, "1", None)]
    write_table(tmp_path / "toy", "toy.item", header, rows)
    dataset = create_dataset(toy_config(tmp_path, seq_len={"vector": 2}))
    assert dataset.item_feat is not None
    assert dataset.item_feat["title"].tolist() == [[0, 0], [1, 2], [0, 0]]
    assert dataset.item_feat["vector"].tolist() == [[0.0, 0.0], [0.5, 1.5], [1.0, 0.0]]
    assert dataset.item_feat["price"].tolist() == [3.0, 3.0, 3.0]
    assert dataset.field2id_token["title"].tolist() == ["[PAD]", "toy", "story"]
    assert (dataset.field2seqlen["title"], dataset.field2seqlen["vector"]) == (2, 2)
    assert dataset.field2source["title"] is FeatureSource.ITEM
    assert dataset.field2source["item_id"] is FeatureSource.ITEM_ID


def test_lists_of_arrow_are_sequences() -> None:
    inter = pa.table({"user_id": ["a", "a"], "item_id": ["x", "y"]})
    item = pa.table({"item_id": ["y", "x"], "tags": [["p", "q", ""], None], "vector": [[1.0], [2.0, 3.0]]})
    dataset = create_dataset(Config(General, "toy"), inter=inter, item=item)
    assert dataset.item_feat is not None
    assert dataset.item_feat["tags"].tolist() == [[0, 0], [0, 0], [1, 2]]
    assert dataset.item_feat["vector"].tolist() == [[0, 0], [2, 3], [1, 0]]
    assert dataset.field2type["tags"] is FeatureType.TOKEN_SEQ


def test_only_the_columns_that_are_asked_for_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy").mkdir()
    parquet.write_table(pa.Table.from_pandas(frame()), tmp_path / "toy" / "toy.inter.parquet")
    asked: list[Any] = []
    real = parquet.read_table

    def recorded(path: Any, columns: Any = None) -> Any:
        asked.append(columns)
        return real(path, columns=columns)

    monkeypatch.setattr(parquet, "read_table", recorded)
    config = toy_config(tmp_path, load_col={"inter": ["user_id", "item_id"]})
    assert create_dataset(config).inter_feat.columns == ["user_id", "item_id"]
    assert asked == [["user_id", "item_id"]]


def test_fields_are_loaded_or_left_out_by_suffix(tmp_path: Path) -> None:
    write_inter(tmp_path)
    write_table(tmp_path / "toy", "toy.user", ("user_id:token", "age:token", "sex:token"), [("u1", 7, "f")])
    chosen = {"inter": "*", "user": ["user_id", "sex"]}
    dataset = create_dataset(toy_config(tmp_path, load_col=chosen, filter_inter_by_user_or_item=False))
    assert dataset.user_feat is not None
    assert dataset.user_feat.columns == ["user_id", "sex"]
    assert create_dataset(toy_config(tmp_path, load_col={"inter": "*"})).user_feat is None
    left = create_dataset(toy_config(tmp_path, unload_col={"inter": ["rating"], "user": ["age"]}))
    assert "rating" not in left.inter_feat
    assert "age" not in left.field2type


def test_a_separator_may_have_several_characters_and_text_any_encoding(tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    folder.mkdir()
    text = "user_id:token::item_id:token\nJosé::1\nJosé::2\n"
    (folder / "toy.inter").write_text(text, encoding="latin-1")
    dataset = create_dataset(toy_config(tmp_path, field_separator="::", encoding="latin-1"))
    assert dataset.field2id_token["user_id"].tolist() == ["[PAD]", "José"]


def test_quotes_and_the_word_na_are_text_like_any_other(tmp_path: Path) -> None:
    rows = [('"a', "NA", 1, 1), ("b", "None", 2, 2), ('"a', '"', 3, 3)]
    write_table(tmp_path / "toy", "toy.inter", INTER, rows)
    dataset = create_dataset(toy_config(tmp_path))
    assert dataset.field2id_token["user_id"].tolist() == ["[PAD]", '"a', "b"]
    assert dataset.field2id_token["item_id"].tolist() == ["[PAD]", "NA", "None", '"']


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    text = "\ufeffuser_id:token\titem_id:token\r\nu\ti\r\nv\ti\r\n\r\n"
    (tmp_path / "toy" / "toy.inter").write_bytes(text.encode())
    dataset = create_dataset(toy_config(tmp_path))
    assert (len(dataset), dataset.field2id_token["item_id"].tolist()) == (2, ["[PAD]", "i"])


def test_times_keep_all_their_digits(tmp_path: Path) -> None:
    late = 1_700_000_000_000_000_001
    write_table(tmp_path / "toy", "toy.inter", INTER, [("u", "i", 1, late), ("u", "j", 1, late + 1)])
    column = create_dataset(toy_config(tmp_path)).inter_feat["timestamp"]
    assert column.dtype == torch.int64
    assert column.tolist() == [late, late + 1]
    write_table(tmp_path / "toy", "toy.inter", INTER, [("u", "i", 1, 881250949), ("u", "j", 1, "881250949.25")])
    column = create_dataset(toy_config(tmp_path)).inter_feat["timestamp"]
    assert column.dtype == torch.float64
    assert column.tolist() == [881250949.0, 881250949.25]


def test_dates_of_a_table_are_times() -> None:
    table = pa.table(
        {
            "user_id": ["u", "u"],
            "item_id": ["i", "j"],
            "timestamp": pa.array([2, 1], pa.timestamp("ns")),
        }
    )
    assert create_dataset(Config(General, "toy"), inter=table).inter_feat["timestamp"].tolist() == [2, 1]


def test_additional_tables_are_loaded_by_their_suffix(tmp_path: Path) -> None:
    write_inter(tmp_path)
    rows = [("i2", "1 2"), ("i9", "3 4")]
    write_table(tmp_path / "toy", "toy.ent", ("ent_id:token", "ent_emb:float_seq"), rows)
    config = toy_config(
        tmp_path,
        additional_feat_suffix="ent",
        alias_of_item_id=["ent_id"],
        preload_weight={"ent_id": "ent_emb"},
    )
    dataset = create_dataset(config)
    assert dataset.ent_feat["ent_id"].tolist() == [2, 3]
    assert dataset.get_preload_weight("ent_id").tolist() == [[0, 0], [0, 0], [1, 2], [3, 4]]
    assert dataset.field2source["ent_emb"] == "ent"
    with pytest.raises(ConfigError, match="preload_weight has no 'item_id'"):
        dataset.get_preload_weight("item_id")
    with pytest.raises(AttributeError, match="Dataset has no attribute 'net_feat'"):
        _ = dataset.net_feat


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            "user_id:token\titem_id:tokn",
            "field 'item_id' of toy.inter has the type 'tokn', which does not exist; did you",
        ),
        (
            "user_id:token\titem_id:text",
            "field 'item_id' of toy.inter has the type 'text', which does not exist; there",
        ),
        ("user_id:token\titem_id", "in which 'item_id' has no type; write each field as name:type"),
        ("user_id:token,item_id:token", "which field_separator='\\t' does not divide into its fields"),
        ("user_id:token\tuser_id:token", "toy.inter has two fields of the name 'user_id'"),
        ("", "is empty; its first line must name and type its fields"),
    ],
)
def test_a_header_that_is_none_is_an_error(header: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.inter").write_text(f"{header}\nu\ti\n")
    with pytest.raises(DataError) as error:
        create_dataset(toy_config(tmp_path))
    assert message in str(error.value)


def test_a_field_type_that_does_not_exist_is_an_error_that_names_the_nearest() -> None:
    config = Config(General, "toy", config_dict={"field_types": {"rating": "flaot"}})
    with pytest.raises(DataError, match=r"field 'rating' of field_types, for toy\.inter has the type 'flaot'.*'float'"):
        create_dataset(config, inter=frame())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"load_col": {"inter": ["user_id", "item_id", "ratings"]}}, "load_col names the field 'ratings' of toy.inter"),
        (
            {"unload_col": {"inter": ["raiting"]}},
            "unload_col names the field 'raiting' of toy.inter, which is not there",
        ),
        ({"load_col": {"inter": ["item_id"]}}, "toy.inter has no column 'user_id'"),
        ({"load_col": {"user": ["user_id"]}}, "load_col asks for toy.user, which is not in"),
        ({"load_col": {"user": "*"}}, "no field of the interactions of 'toy' is loaded; see load_col"),
        ({"additional_feat_suffix": ["ent"]}, "additional_feat_suffix asks for toy.ent, which is not in"),
        ({"USER_ID_FIELD": "uid"}, "toy.inter has no column 'uid'"),
        ({"benchmark_filename": ["train", "test"]}, "toy.train.inter is not there"),
    ],
)
def test_a_missing_column_or_file_is_an_error(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_inter(tmp_path)
    with pytest.raises(DataError) as error:
        create_dataset(toy_config(tmp_path, **given))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"load_col": ["user_id"]}, "load_col=['user_id'] must map a suffix to fields"),
        (
            {"load_col": {"inter": ["user_id", "item_id"]}, "unload_col": {"inter": ["rating"]}},
            "load_col and unload_col both name fields of 'inter'",
        ),
        ({"seq_len": 3}, "seq_len=3 must map fields to values"),
        ({"ITEM_ID_FIELD": None}, "USER_ID_FIELD and ITEM_ID_FIELD are set together or not at all"),
        ({"benchmark_filename": "train"}, "benchmark_filename='train' must be a list"),
        ({"benchmark_filename": ["a"]}, "benchmark_filename has 1 parts; give two"),
        ({"inter_layout": "list"}, "inter_layout='list' does not exist; did you mean 'lists'?"),
    ],
)
def test_settings_of_reading_that_cannot_be_meant_are_refused(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_inter(tmp_path)
    with pytest.raises(ConfigError) as error:
        create_dataset(toy_config(tmp_path, **given))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [("u", "i", "good", 1)],
            "toy.inter: 'good' in the column 'rating' is no number, as its type 'float' says; me",
        ),
        (
            [("u", "i", 1)],
            "line 2 of {folder}/toy.inter: it has 3 fields, and the header 4 (user_id, item_id, rating, ",
        ),
        ([("u", "i", 1, 1), ("u", "i", 1, 1, 1)], "line 3 of {folder}/toy.inter: it has 5 fields, and the header 4"),
        ([], "no row of toy.inter is left: 0 interactions are read"),
    ],
)
def test_rows_that_do_not_fit_the_header_are_an_error(rows: list[Any], message: str, tmp_path: Path) -> None:
    write_table(tmp_path / "toy", "toy.inter", INTER, rows)
    with pytest.raises(DataError) as error:
        create_dataset(toy_config(tmp_path))
    assert message.format(folder=tmp_path / "toy") in str(error.value)


def test_a_folder_or_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="of the data set 'toy' is not there; put its files there, or set data_path"):
        create_dataset(toy_config(tmp_path))
    with pytest.raises(DataError, match=r"\(MovieLens 100K is at grouplens.org/.*; docs/.*demo-shop"):
        create_dataset(Config("BPR", "ml-100k", config_dict={"data_path": str(tmp_path)}))
    write_inter(tmp_path, "toy.intr")
    with pytest.raises(DataError, match=r"toy\.inter is not there.*did you mean 'toy\.intr'"):
        create_dataset(toy_config(tmp_path))


def test_a_table_that_is_none_is_an_error() -> None:
    with pytest.raises(DataError, match=r"toy\.inter is a int; give a path, an Arrow table"):
        create_dataset(Config(General, "toy"), inter=3)
    with pytest.raises(ConfigError, match="a table is handed over as 'items'; there are inter, user, item"):
        create_dataset(Config(General, "toy"), inter=frame(), items=frame())


def test_text_that_is_no_number_in_a_table_is_an_error() -> None:
    table = frame().assign(rating=["good", "bad", "ugly"]).rename(columns={"rating": "rating:float"})
    with pytest.raises(
        DataError, match=r"field 'rating' of toy\.inter does not hold what its type 'float' says.*row 1"
    ):
        create_dataset(Config(General, "toy"), inter=table)


def test_a_field_of_two_tables_is_an_error(tmp_path: Path) -> None:
    write_inter(tmp_path)
    write_table(tmp_path / "toy", "toy.item", ("item_id:token", "rating:float"), [("i1", 2)])
    with pytest.raises(DataError, match=r"the field 'rating' is in toy\.inter and in toy\.item; load it from one"):
        create_dataset(toy_config(tmp_path))


def test_data_without_users_and_items_can_be_read(tmp_path: Path) -> None:
    write_table(tmp_path / "toy", "toy.inter", ("site:token", "label:float"), [("a", 1), ("b", 0)])
    dataset = create_dataset(
        Config(General, "toy", config_dict=settings(tmp_path, USER_ID_FIELD=None, ITEM_ID_FIELD=None))
    )
    assert dataset.inter_feat["site"].tolist() == [1, 2]
    with pytest.raises(ConfigError, match="this needs USER_ID_FIELD, which is not set"):
        _ = dataset.user_num


def test_tokens_of_a_csv_file_keep_their_zeros(tmp_path: Path) -> None:
    table = frame().assign(**{"zip:token": ["007", "010", "7"], "area": ["01", "02", "01"]})
    path = tmp_path / "toy.csv"
    table.to_csv(path, index=False)
    dataset = create_dataset(Config(General, "toy", config_dict={"field_types": {"area": "token"}}), inter=path)
    assert dataset.field2id_token["zip"].tolist() == ["[PAD]", "007", "010", "7"]
    assert dataset.field2id_token["area"].tolist() == ["[PAD]", "01", "02"]


@pytest.mark.parametrize("ending", ["tsv", "tsv.gz"])
def test_text_with_tabs_needs_no_types(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    frame().to_csv(path, index=False, sep="\t")
    assert content(create_dataset(Config(General, "toy"), inter=path)) == EXPECTED


def test_columns_may_be_tensors() -> None:
    given = {"user_id": torch.tensor([7, 8, 7]), "item_id": torch.tensor([1, 1, 2]), "rating": torch.ones(3)}
    dataset = create_dataset(Config(General, "toy"), inter=given)
    assert dataset.field2id_token["user_id"].tolist() == ["[PAD]", "7", "8"]
    assert dataset.inter_feat["item_id"].tolist() == [1, 1, 2]


def test_columns_of_different_lengths_are_no_table() -> None:
    with pytest.raises(DataError, match=r"the columns \['user_id', 'item_id'\] of toy.inter are no table: Column 1"):
        create_dataset(Config(General, "toy"), inter={"user_id": [1, 2], "item_id": [1]})


@pytest.mark.parametrize(
    "columns", [{"rating": "rating:flot"}, {"rating": "rating:number", "user_id": "user_id:token"}]
)
def test_a_type_that_does_not_exist_in_a_table_is_an_error(columns: dict[str, str]) -> None:
    wrong = columns["rating"].removeprefix("rating:")
    with pytest.raises(DataError, match=f"field 'rating' of toy.inter has the type '{wrong}', which does not exist"):
        create_dataset(Config(General, "toy"), inter=frame().rename(columns=columns))


def test_a_colon_in_the_name_of_a_column_is_no_type() -> None:
    dataset = create_dataset(Config(General, "toy"), inter=frame().rename(columns={"rating": "source:web"}))
    assert "source:web" in dataset.inter_feat


def test_field_types_for_a_field_that_is_nearly_there_are_an_error() -> None:
    config = Config(General, "toy", config_dict={"field_types": {"ratng": "token"}})
    with pytest.raises(ConfigError) as error:
        create_dataset(config, inter=frame())
    assert str(error.value) == "field_types names the field 'ratng', which is not loaded; did you mean 'rating'?"


def test_truth_values_are_labels_in_the_label_field_and_tokens_elsewhere() -> None:
    table = frame().assign(label=[True, False, True], new=[True, False, True])
    dataset = create_dataset(Config(General, "toy"), inter=table)
    assert dataset.inter_feat["label"].tolist() == [1.0, 0.0, 1.0]
    assert dataset.field2type["new"] is FeatureType.TOKEN


@pytest.mark.parametrize(
    ("suffix", "near"), [("itm", "; did you mean 'item'?"), ("ent", "; add it to additional_feat_suffix")]
)
@pytest.mark.parametrize("setting", ["load_col", "unload_col"])
def test_a_table_that_there_cannot_be_is_an_error(tmp_path: Path, setting: str, suffix: str, near: str) -> None:
    write_inter(tmp_path)
    with pytest.raises(ConfigError) as error:
        create_dataset(toy_config(tmp_path, **{setting: {suffix: ["a"]}}))
    known = "['inter', 'user', 'item', 'kg', 'link']"
    assert str(error.value) == f"{setting} names the table {suffix!r}, which is none of {known}{near}"
