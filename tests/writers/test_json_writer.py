"""Metrics as lines of JSON."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.writers.conftest import resumed
from treadle.errors import ConfigError
from treadle.events import EventStorage
from treadle.writers import JSONWriter


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, having checked that each line is strict JSON with sorted keys."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    rows = [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(list(row) == sorted(row) for row in rows)
    return rows


def iterations(path: Path) -> list[int]:
    return [row["iteration"] for row in rows_of(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.json"


# Rows ---------------------------------------------------------------------------------------------------------


def test_b33_each_iteration_that_owns_new_values_has_one_line(storage: EventStorage, path: Path) -> None:
    """The numbers of a known case: losses each iteration, two metrics at periods of their own, a log every 20."""
    writer = JSONWriter(path)
    for iteration in range(60):
        storage.iter = iteration
        storage.put_scalar("loss", float(iteration))
        if (iteration + 1) % 18 == 0:
            storage.put_scalar("by18", iteration, smoothing_hint=False)
        if (iteration + 1) % 52 == 0:
            storage.put_scalar("by52", iteration, smoothing_hint=False)
        if (iteration + 1) % 20 == 0:
            writer.write()
    writer.close()
    assert rows_of(path) == [
        {"by18": 17, "iteration": 17},
        {"iteration": 19, "loss": 9.5},
        {"by18": 35, "iteration": 35},
        {"iteration": 39, "loss": 29.5},
        {"by52": 51, "iteration": 51},
        {"by18": 53, "iteration": 53},
        {"iteration": 59, "loss": 49.5},
    ]


def test_b33_every_line_is_json_even_for_nan(storage: EventStorage, path: Path) -> None:
    writer = JSONWriter(path)
    storage.put_scalars(loss=math.nan, up=torch.tensor(math.inf), down=-math.inf, z=True, a=3)
    storage.put_scalar("by class", [0.5, math.nan], kind="epoch")
    writer.write()
    assert rows_of(path) == [
        {"a": 3, "by class": [0.5, "nan"], "down": "-inf", "iteration": 0, "loss": "nan", "up": "inf", "z": 1.0}
    ]


def test_b35_lines_show_the_median_of_the_window_or_the_raw_value(storage: EventStorage, path: Path) -> None:
    writer = JSONWriter(path, window_size=3)
    for iteration, value in enumerate([7.0, 5.0, 1.0, 3.0]):
        storage.iter = iteration
        storage.put_scalar("loss", value)
        storage.put_scalar("lr", value, smoothing_hint=False)
    writer.write()
    assert rows_of(path) == [{"iteration": 3, "loss": 3.0, "lr": 3.0}]
    storage.iter = 4
    storage.put_scalars(loss=9.0)
    writer.write()
    assert rows_of(path)[1:] == [{"iteration": 4, "loss": 3.0}]


def test_what_comes_later_for_an_iteration_goes_into_its_line(storage: EventStorage, path: Path) -> None:
    writer = JSONWriter(path)
    for iteration in (10, 20):
        storage.put_scalar("loss", 1.0, cur_iter=iteration)
        writer.write()
    storage.put_scalar("score", 0.5, cur_iter=20)
    writer.write()
    storage.put_scalar("late", 0.25, cur_iter=10)
    writer.write()
    storage.put_scalar("between", 0.125, cur_iter=15)
    writer.write()
    assert rows_of(path) == [
        {"iteration": 10, "late": 0.25, "loss": 1.0},
        {"between": 0.125, "iteration": 15},
        {"iteration": 20, "loss": 1.0, "score": 0.5},
    ]


def test_nothing_new_writes_nothing(storage: EventStorage, path: Path) -> None:
    writer = JSONWriter(path)
    writer.write()
    assert path.read_bytes() == b""
    storage.put_scalar("loss", 1.0)
    writer.write()
    before = path.read_bytes()
    writer.write()
    writer.close()
    writer.close()
    writer.write()
    assert path.read_bytes() == before


def test_b32_what_is_put_at_the_end_is_there_after_the_close(storage: EventStorage, path: Path) -> None:
    writer = JSONWriter(path)
    for iteration in range(50):
        storage.iter = iteration
        storage.put_scalar("total_loss", 1.0)
        if (iteration + 1) % 20 == 0 or iteration == 49:
            writer.write()
    storage.iter = 50
    storage.put_scalar("Acc@1", 0.75, smoothing_hint=False)
    writer.write()
    writer.close()
    assert iterations(path) == [19, 39, 49, 50]
    assert rows_of(path)[-1] == {"Acc@1": 0.75, "iteration": 50}


# Going on -----------------------------------------------------------------------------------------------------


def train(storage: EventStorage, writer: JSONWriter, begin: int, end: int, *, scores: tuple[int, ...] = ()) -> None:
    """Put a loss in each iteration and scores in some; log every tenth."""
    with storage:
        for iteration in range(begin, end):
            storage.iter = iteration
            storage.put_scalar("loss", float(iteration), smoothing_hint=False)
            if iteration in scores:
                storage.put_scalar("score", iteration, smoothing_hint=False)
            if iteration % 10 == 9:
                writer.write()


def test_b34_a_resume_before_the_last_line_leaves_no_iteration_twice(path: Path) -> None:
    whole = path.with_name("whole.json")
    train(EventStorage(), JSONWriter(whole), 0, 60, scores=(5, 25, 45))
    first, killed = EventStorage(), JSONWriter(path)
    train(first, killed, 0, 31, scores=(5, 25, 45))
    checkpoint = resumed(first)
    train(first, killed, 31, 58, scores=(5, 25, 45))
    assert iterations(path)[-1] > 30
    train(checkpoint, JSONWriter(path), 31, 60, scores=(5, 25, 45))
    assert path.read_text() == whole.read_text()


def test_b34_lines_of_a_life_that_was_given_up_are_cut_though_nothing_takes_their_place(path: Path) -> None:
    first, killed = EventStorage(), JSONWriter(path)
    train(first, killed, 0, 20)
    checkpoint = resumed(first)
    train(first, killed, 20, 40, scores=(23, 33))
    assert iterations(path) == [9, 19, 23, 29, 33, 39]
    train(checkpoint, JSONWriter(path), 20, 40)
    assert iterations(path) == [9, 19, 29, 39]


def test_b34_a_writer_that_stays_cuts_its_lines_when_the_run_is_rolled_back(path: Path) -> None:
    storage, writer = EventStorage(), JSONWriter(path)
    train(storage, writer, 0, 25)
    state = storage.state_dict()
    train(storage, writer, 25, 50, scores=(33,))
    storage.load_state_dict(state)
    train(storage, writer, 25, 40)
    assert iterations(path) == [9, 19, 29, 39]


def test_b34_a_storage_that_begins_later_keeps_the_lines_before(path: Path) -> None:
    train(EventStorage(), JSONWriter(path), 0, 40)
    train(EventStorage(25), JSONWriter(path), 25, 40, scores=(27,))
    assert iterations(path) == [9, 19, 27, 29, 39]


def test_what_was_put_before_a_checkpoint_and_not_written_before_the_crash_is_written_then(path: Path) -> None:
    first = EventStorage()
    train(first, JSONWriter(path), 0, 26, scores=(25,))
    assert iterations(path) == [9, 19]
    train(resumed(first), JSONWriter(path), 26, 30)
    assert rows_of(path)[2:] == [{"iteration": 25, "score": 25}, {"iteration": 29, "loss": 29.0}]


@pytest.mark.parametrize(("begin", "rows"), [(26, [9, 19]), (5, [])])
def test_a_line_that_was_written_because_a_process_left_is_cut_when_the_run_goes_on(
    path: Path, begin: int, rows: list[int]
) -> None:
    first, left = EventStorage(), JSONWriter(path)
    train(first, left, 0, begin)
    saved, state = resumed(first), left.state_dict()
    with first:
        left.write()
    assert iterations(path) == [*rows, begin - 1]
    again = JSONWriter(path)
    again.load_state_dict(state)
    assert again.state_dict() == state, "it may be saved again before it writes"
    train(saved, again, begin, 40)
    assert iterations(path) == [9, 19, 29, 39]


def test_a_file_of_another_run_is_kept_under_another_name(path: Path) -> None:
    for runs in range(3):
        train(EventStorage(), JSONWriter(path), 0, 10 * (runs + 1))
    assert iterations(path) == [9, 19, 29]
    assert iterations(path.with_name("metrics.json.1")) == [9]
    assert iterations(path.with_name("metrics.json.2")) == [9, 19]


def test_a_writer_that_was_closed_goes_on_in_its_file(storage: EventStorage, path: Path) -> None:
    writer = JSONWriter(path)
    for iteration in range(3):
        storage.put_scalar("loss", 1.0, cur_iter=iteration)
        writer.write()
        writer.close()
    assert iterations(path) == [0, 1, 2]
    assert [file.name for file in path.parent.iterdir()] == ["metrics.json"]


# Damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [b'{"iteration": 9, "lo', b'{"iteration": 9, "loss": 1.0}', b'oss": 1.0}\n', b"[1]\n"])
def test_a_last_line_that_a_crash_cut_through_is_left_out(path: Path, torn: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"iteration": 5, "loss": 2.0}\n' + torn)
    with EventStorage(20) as storage:
        storage.put_scalar("loss", 1.0)
        JSONWriter(path).write()
    assert rows_of(path) == [{"iteration": 5, "loss": 2.0}, {"iteration": 20, "loss": 1.0}]


@pytest.mark.parametrize(
    "line", [b"no json\n", b'{"iteration": 5}\n', b'{"iteration": 4}\n', b'{"step": 9}\n', b"\xff\n"]
)
def test_another_line_that_is_no_row_is_an_error_and_left_alone(path: Path, line: bytes) -> None:
    path.parent.mkdir()
    contents = b'{"iteration": 5, "loss": 2.0}\n' + line + b'{"iteration": 15, "loss": 2.0}\n'
    path.write_bytes(contents)
    with EventStorage(20), pytest.raises(ConfigError) as caught:
        JSONWriter(path).write()
    assert str(caught.value) == (
        f"{path}, line 2, is no row of metrics after the ones before it; move the file away, or mend it"
    )
    assert path.read_bytes() == contents


def test_a_metric_called_iteration_is_refused(storage: EventStorage, path: Path) -> None:
    storage.put_scalar("iteration", 1.0)
    with pytest.raises(ConfigError) as caught:
        JSONWriter(path).write()
    assert str(caught.value) == "a metric is called 'iteration', as is the first value of a row; rename it"


def test_a_window_must_be_of_something(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^window_size=0 shows nothing; use at least 1$"):
        JSONWriter(path, window_size=0)
