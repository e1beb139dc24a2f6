"""Lines that cannot be read are named or left out, and words that RecBole takes for missing values are told."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.recsys.data.small import INTER, toy_config, write_table
from treadle.errors import ConfigError, DataError
from treadle.recsys import Dataset, create_dataset

TABLES = "treadle.recsys.data.tables"


def write(folder: Path, text: str | bytes, name: str = "toy.inter") -> None:
    (folder / "toy").mkdir(exist_ok=True)
    (folder / "toy" / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def pairs(dataset: Dataset) -> list[tuple[str, str]]:
    users = dataset.id2token("user_id", dataset.inter_feat["user_id"]).tolist()
    return list(zip(users, dataset.id2token("item_id", dataset.inter_feat["item_id"]).tolist(), strict=True))


HEADER = "\t".join(INTER)
BROKEN = f"{HEADER}\nu1\ti1\t5\t1\n\nu1\ti2\tfour\t2\nu2\ti1\t3\nu2\ti2\t4\t4\nu3\ti1\t1\t5\t6\n"


def test_a_bad_line_is_named_by_its_place_in_the_file_where_empty_lines_count(tmp_path: Path) -> None:
    write(tmp_path, BROKEN)
    with pytest.raises(DataError) as error:
        create_dataset(toy_config(tmp_path))
    assert str(error.value) == (
        f"line 4 of {tmp_path}/toy/toy.inter: 'four' in the column 'rating' is no number, as its type 'float' says; "
        "mend the line, or set on_bad_line to 'skip' to leave such lines out"
    )


def test_bad_lines_are_left_out_and_told_if_the_settings_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, BROKEN)
    with caplog.at_level(logging.WARNING, TABLES):
        dataset = create_dataset(toy_config(tmp_path, on_bad_line="skip"))
    assert pairs(dataset) == [("u1", "i1"), ("u2", "i2")]
    assert dataset.inter_feat["timestamp"].tolist() == [1, 4]
    (told,) = [one.getMessage() for one in caplog.records if "left out" in one.getMessage()]
    assert told.startswith(f"3 lines of {tmp_path}/toy/toy.inter are left out: line 4: 'four' in the column 'rating'")
    assert "; line 5: it has 3 fields, and the header 4" in told
    assert "; line 7: it has 5 fields" in told


def test_a_long_separator_and_a_sequence_of_numbers_are_looked_at_too(tmp_path: Path) -> None:
    header = "item_id:token::vector:float_seq".replace("::", ", ")
    write(tmp_path, "user_id:token, item_id:token\nu1, i1\nu2, i1\n")
    write(tmp_path, f"{header}\ni1, 1 2\ni2, 1 two\n", "toy.item")
    given: dict[str, Any] = {"field_separator": ", ", "load_col": {"inter": "*", "item": "*"}}
    with pytest.raises(DataError, match=r"line 3 of .*toy\.item: 'two' in the column 'vector' is no number.*float_seq"):
        create_dataset(toy_config(tmp_path, **given))
    dataset = create_dataset(toy_config(tmp_path, **given, on_bad_line="skip"))
    assert dataset.item_feat is not None
    assert dataset.field2id_token["item_id"].tolist() == ["[PAD]", "i1"]
    assert dataset.item_feat["vector"][1].tolist() == [1.0, 2.0]


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path: Path) -> None:
    write(tmp_path, f"{HEADER}\nu1\ti1\t5\t1\n".encode() + b"u\xff\ti1\t5\t1\n")
    with pytest.raises(DataError, match=r"line 3 of .*toy\.inter: it holds bytes that are no utf-8"):
        create_dataset(toy_config(tmp_path))


@pytest.mark.parametrize(("name", "separator"), [("toy.inter.csv", ","), ("toy.inter.tsv", "\t")])
def test_lines_of_a_csv_file_are_named_and_left_out_too(name: str, separator: str, tmp_path: Path) -> None:
    rows = [("u1", '"i\n1"', "5"), ("u1", "i2", "bad"), ("u2",), ("u2", "i2", "4")]
    lines = [separator.join(row) for row in [("user_id", "item_id", "rating:float"), *rows]]
    write(tmp_path, "\n".join(lines) + "\n", name)
    with pytest.raises(DataError, match=rf"line 4 of .*{name}: 'bad' in the column 'rating:float' is no number"):
        create_dataset(toy_config(tmp_path, load_col=None))


def test_good_lines_of_a_csv_file_are_kept(tmp_path: Path) -> None:
    write(tmp_path, 'user_id,item_id,rating:float\nu1,"i,1",5\nu1,i2,bad\nu2\nu2,i2,4\n', "toy.inter.csv")
    dataset = create_dataset(toy_config(tmp_path, load_col=None, on_bad_line="skip"))
    assert pairs(dataset) == [("u1", "i,1"), ("u2", "i2")]


def test_short_lines_of_pairs_are_numbered_with_empty_ones_and_left_out_if_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "1 2\n\n3\n4 5\n", "toy.txt")
    given: dict[str, Any] = {"inter_layout": "pairs", "load_col": None}
    with pytest.raises(DataError, match=r"line 3 of .*toy\.txt has fewer than two words"):
        create_dataset(toy_config(tmp_path, **given))
    with caplog.at_level(logging.WARNING, TABLES):
        dataset = create_dataset(toy_config(tmp_path, **given, on_bad_line="skip"))
    assert pairs(dataset) == [("1", "2"), ("4", "5")]
    assert "1 lines of" in caplog.text


def test_a_policy_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    write(tmp_path, BROKEN)
    with pytest.raises(ConfigError, match=r"on_bad_line='skipp' does not exist; did you mean 'skip'\?"):
        create_dataset(toy_config(tmp_path, on_bad_line="skipp"))
    with pytest.raises(ConfigError, match=r"missing_values='NA' must be a list of texts"):
        create_dataset(toy_config(tmp_path, missing_values="NA"))


def countries(folder: Path, **given: Any) -> Dataset:
    """Return a data set whose items have the words of RecBole for missing values, and a user named so."""
    rows = [("u1", "i1", 5, 1), ("NA", "i2", 4, 2), ("u2", "i3", "NA", 3), ("u2", "i2", 3, 4)]
    write_table(folder / "toy", "toy.inter", INTER, rows)
    items = [("i1", "NA", "a NA"), ("i2", "DE", "NA"), ("i3", "null", "b")]
    write_table(folder / "toy", "toy.item", ("item_id:token", "country:token", "tags:token_seq"), items)
    return create_dataset(toy_config(folder, load_col={"inter": "*", "item": "*"}, **given))


def test_words_that_recbole_reads_as_missing_are_tokens_here_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, TABLES):
        dataset = countries(tmp_path)
    assert dataset.field2id_token["country"].tolist() == ["[PAD]", "NA", "DE", "null"]
    assert dataset.field2id_token["user_id"].tolist() == ["[PAD]", "u1", "NA", "u2"]
    told = [one.getMessage() for one in caplog.records]
    assert (
        "field 'country' of toy.item has the tokens 'NA', 'null', which RecBole reads as missing; set missing_values "
        "to ['NA', 'null'] to do the same" in told
    )
    assert any(one.startswith("field 'user_id' of toy.inter has the tokens 'NA'") for one in told)


def test_with_missing_values_they_are_read_as_recbole_reads_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, f"{TABLES}.reading"):
        dataset = countries(tmp_path, missing_values=["NA", "null"])
    # What RecBole 1.2.1 makes of the same files: rows without a user are gone, a word inside a sequence is a token.
    assert dataset.field2id_token["country"].tolist() == ["[PAD]", "DE"]
    assert dataset.field2id_token["tags"].tolist() == ["[PAD]", "a", "NA", "b"]
    assert dataset.field2id_token["user_id"].tolist() == ["[PAD]", "u1", "u2"]
    assert dataset.item_feat is not None
    items = dataset.token2id("item_id", ["i1", "i2", "i3"])
    assert dataset.item_feat["country"][items].tolist() == [0, 1, 0]
    assert dataset.item_feat["tags"][items].tolist() == [[1, 2], [0, 0], [3, 0]]
    assert "RecBole reads as missing" not in caplog.text


def test_a_missing_number_is_the_mean_whatever_stands_for_it(tmp_path: Path) -> None:
    dataset = countries(tmp_path)
    assert dataset.inter_feat["rating"].tolist() == [5.0, 4.0, 4.0, 3.0]
