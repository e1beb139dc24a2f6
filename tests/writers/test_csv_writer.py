"""Metrics as a table."""

import csv
from pathlib import Path

import pytest

from tests.writers.conftest import resumed
from treadle.events import EventStorage
from treadle.writers import CSVWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.csv"


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_metric_that_comes_later_gets_a_column(storage: EventStorage, path: Path) -> None:
    writer = CSVWriter(path)
    storage.put_scalar("loss", 2.0)
    writer.write()
    storage.iter = 5
    storage.put_scalar("a, b", 0.5)
    writer.write()
    storage.iter = 6
    storage.put_scalar("loss", 4.0)
    writer.write()
    assert path.read_text() == 'iteration,loss,"a, b"\n0,2.0,\n5,,0.5\n6,3.0,\n'


def test_what_comes_later_for_an_iteration_goes_into_its_row(storage: EventStorage, path: Path) -> None:
    writer = CSVWriter(path)
    storage.put_scalars(loss=2.0, score=float("nan"))
    writer.write()
    storage.put_scalar("loss", 1.0, cur_iter=3)
    writer.write()
    storage.put_scalar("score", 0.5)
    writer.write()
    storage.put_scalar("late", 0.25)
    writer.write()
    assert table(path) == [
        {"iteration": "0", "loss": "2.0", "score": "nan", "late": "0.25"},
        {"iteration": "3", "loss": "1.5", "score": "", "late": ""},
    ]


def test_lists_and_dicts_of_numbers_take_several_columns_and_words_one(storage: EventStorage, path: Path) -> None:
    storage.put_scalar("recall", [0.5, {"cat": 0.25}], kind="epoch")
    storage.put_scalar("note", "two\nlines", kind="epoch")
    storage.put_scalar("nothing", None, kind="epoch")
    CSVWriter(path).write()
    assert table(path) == [{"iteration": "0", "note": "two lines", "recall/0": "0.5", "recall/1/cat": "0.25"}]


def test_b34_a_table_goes_on_where_the_checkpoint_was(path: Path) -> None:
    first, writer = EventStorage(), CSVWriter(path)
    with first:
        for iteration in (1, 2):
            first.put_scalar("loss", float(iteration), smoothing_hint=False, cur_iter=iteration)
            writer.write()
        first.iter = 2
        checkpoint = resumed(first)
        for iteration in (3, 4):
            first.put_scalar("given up", 0.0, cur_iter=iteration)
            writer.write()
    with checkpoint:
        checkpoint.put_scalar("loss", 3.0, smoothing_hint=False, cur_iter=3)
        CSVWriter(path).write()
    assert [(row["iteration"], row["loss"]) for row in table(path)] == [("1", "1.0"), ("2", "2.0"), ("3", "3.0")]


def test_a_new_run_begins_a_new_table(path: Path) -> None:
    writer = CSVWriter(path)
    for name in ("old", "new"):
        with EventStorage() as storage:
            storage.put_scalar(name, 1.0)
            writer.write()
    assert path.read_text() == "iteration,new\n0,1.0\n"
    assert path.with_name("metrics.csv.1").read_text() == "iteration,old\n0,1.0\n"


def test_a_row_that_a_crash_cut_through_is_left_out(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("iteration,loss,score\n3,1.0,0.5\n4,1.0")
    with EventStorage(7) as storage:
        storage.put_scalar("loss", 2.0)
        CSVWriter(path).write()
    assert path.read_text() == "iteration,loss,score\n3,1.0,0.5\n7,2.0,\n"
