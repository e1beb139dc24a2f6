"""Files without a header: a list of items a user, or a pair a line."""

import gzip
from pathlib import Path

import pytest

from tests.recsys.data.small import General, settings, tokens
from treadle.errors import DataError
from treadle.recsys import Config, Dataset, create_dataset, data_preparation


def read(folder: Path, files: dict[str, str], **given: object) -> Dataset:
    (folder / "toy").mkdir()
    for name, text in files.items():
        path = folder / "toy" / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    config_dict = settings(folder, **given)
    del config_dict["load_col"]
    return create_dataset(Config(General, "toy", config_dict=config_dict))


def test_a_line_is_a_user_and_the_items(tmp_path: Path) -> None:
    dataset = read(tmp_path, {"toy.txt.gz": "a x y\nb\nc  z\tx \n"}, inter_layout="lists")
    assert tokens(dataset) == [("a", "x"), ("a", "y"), ("c", "z"), ("c", "x")]
    assert dataset.inter_feat["timestamp"].tolist() == [0, 1, 2, 3]


def test_a_line_is_a_user_and_one_item_in_the_order_of_time(tmp_path: Path) -> None:
    dataset = read(tmp_path, {"toy.txt": "1 9\n1 8\n2 9\n"}, inter_layout="pairs")
    assert tokens(dataset) == [("1", "9"), ("1", "8"), ("2", "9")]
    assert dataset.inter_feat["timestamp"].tolist() == [0, 1, 2]


def test_two_files_are_training_and_test(tmp_path: Path) -> None:
    files = {"train.txt": "0 5 6\n1 5\n", "test.txt": "0 7\n1 6\n"}
    dataset = read(tmp_path, files, inter_layout="lists", benchmark_filename=["train", "test"])
    train, valid, test = dataset.build()
    assert valid is None
    assert train is not None
    assert test is not None
    assert tokens(train) == [("0", "5"), ("0", "6"), ("1", "5")]
    assert tokens(test) == [("0", "7"), ("1", "6")]
    loaders = data_preparation(dataset.config, dataset)
    assert loaders[1] is None


def test_a_line_that_is_too_short_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 2 of .*toy\.txt has fewer than two words; write `user item`"):
        read(tmp_path, {"toy.txt": "1 2\n3\n"}, inter_layout="pairs")


def test_a_layout_whose_file_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.txt is not there"):
        read(tmp_path, {"test.txt": "1 2\n"}, inter_layout="lists", benchmark_filename=["train", "test"])
