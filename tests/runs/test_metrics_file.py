"""The metrics of a run as lines of JSON."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from treadle.events import EventStorage
from treadle.progress import Progress
from treadle.runs.metrics_file import MetricsFile, plain_number

Record = tuple[str, int, Any, str]


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def lines(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        assert isinstance(row.pop("wall_time"), float)
    return rows


def record(step: int, **values: Any) -> list[Record]:
    return [(name, step, value, "step") for name, value in values.items()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


@pytest.fixture
def file(path: Path) -> Any:
    file = MetricsFile(path, Progress(epoch=2))
    yield file
    file.close()


def test_everything_a_step_reports_stands_in_one_line(file: MetricsFile, path: Path) -> None:
    file.put(record(3, loss=1.5))
    file.put(record(3, accuracy=0.5))
    file.put([*record(4, loss=1.0), *record(5, loss=0.5)])
    file.close()
    assert lines(path) == [
        {"step": 3, "epoch": 2, "loss": 1.5, "accuracy": 0.5},
        {"step": 4, "epoch": 2, "loss": 1.0},
        {"step": 5, "epoch": 2, "loss": 0.5},
    ]


def test_seconds_that_a_step_took_stand_beside_the_clock(file: MetricsFile, path: Path) -> None:
    file.put([*record(3, loss=1.5), *record(4, loss=1.0, time=0.25)])
    file.close()
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(row["wall_time"] > 1.7e9 for row in rows)
    assert [row.get("time") for row in rows] == [None, 0.25]


def test_the_line_of_the_step_under_way_is_held_back(file: MetricsFile, path: Path) -> None:
    file.put(record(3, loss=1.5))
    assert lines(path) == []
    file.put(record(4, loss=1.0))
    assert [row["step"] for row in lines(path)] == [3]
    file.close()
    assert [row["step"] for row in lines(path)] == [3, 4]


def test_a_file_may_be_closed_twice(file: MetricsFile, path: Path) -> None:
    file.put(record(1, loss=1.0))
    file.close()
    file.close()
    assert len(lines(path)) == 1


def test_what_was_written_after_a_checkpoint_is_cut_off(file: MetricsFile, path: Path) -> None:
    file.put([*record(1, loss=3.0), *record(2, loss=2.0)])
    state = file.state_dict()
    file.put([*record(2, more=7.0), *record(3, loss=1.0), *record(4, loss=0.0)])
    file.close()
    assert [row["step"] for row in lines(path)] == [1, 2, 3, 4]
    resumed = MetricsFile(path, Progress(epoch=2))
    resumed.load_state_dict(json.loads(json.dumps(state)))
    resumed.put([*record(2, other=8.0), *record(3, loss=0.5)])
    resumed.close()
    assert lines(path) == [
        {"step": 1, "epoch": 2, "loss": 3.0},
        {"step": 2, "epoch": 2, "loss": 2.0, "other": 8.0},
        {"step": 3, "epoch": 2, "loss": 0.5},
    ]


def test_a_state_may_be_loaded_more_than_once(file: MetricsFile, path: Path) -> None:
    file.put([*record(1, loss=3.0), *record(2, loss=2.0)])
    state = file.state_dict()
    file.put(record(3, loss=1.0))
    for _ in range(2):
        file.load_state_dict(state)
        file.put(record(3, loss=1.0))
    file.close()
    assert [row["step"] for row in lines(path)] == [1, 2, 3]


def test_a_line_torn_by_a_kill_is_cut_off(file: MetricsFile, path: Path) -> None:
    file.put([*record(1, loss=3.0), *record(2, loss=2.0)])
    state = file.state_dict()
    file.close()
    with path.open("ab") as torn:
        torn.write(b'{"step": 3, "lo')
    resumed = MetricsFile(path, Progress(epoch=2))
    resumed.load_state_dict(state)
    resumed.close()
    assert [row["step"] for row in lines(path)] == [1, 2]


def test_a_new_run_begins_a_new_file(file: MetricsFile, path: Path) -> None:
    file.put([*record(1, loss=3.0), *record(2, loss=2.0)])
    file.truncate()
    file.put(record(1, loss=9.0))
    file.close()
    assert lines(path) == [{"step": 1, "epoch": 2, "loss": 9.0}]


def saved_at_four(path: Path) -> tuple[dict[str, Any], list[bytes]]:
    """Return a state that was taken with lines of the steps 1 to 3 and the fourth held back, and these lines."""
    file = MetricsFile(path, Progress())
    for step in range(1, 5):
        file.put(record(step, loss=float(step)))
    state = file.state_dict()
    file.close()
    return state, path.read_bytes().splitlines(keepends=True)[:3]


DAMAGE = {
    "gone": (lambda kept: b"", [], "before step 4"),
    "cut at a line": (lambda kept: b"".join(kept[:2]), [1, 2], "between the steps 2 and 4"),
    "cut in a line": (lambda kept: b"".join(kept)[:-5], [1, 2], "between the steps 2 and 4"),
    "edited in the middle": (
        lambda kept: kept[0] + b"# note\n" + b"".join(kept[1:])[:-3],
        [1],
        "between the steps 1 and 4",
    ),
    "longer, of another run": (lambda kept: b'{"step": 9}' + b" " * 500 + b"\n", [], "before step 4"),
    "no text": (lambda kept: b"\xff" * 1000, [], "before step 4"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_of_a_file_that_is_not_what_it_was_the_lines_that_fit_are_kept_and_the_gap_is_told_once(
    path: Path, how: str
) -> None:
    damaged, kept, lost = DAMAGE[how]
    state, written = saved_at_four(path)
    path.write_bytes(damaged(written))
    found = path.stat().st_size
    told: list[str] = []
    resumed = MetricsFile(path, Progress(), told.append)
    for _ in range(2):
        resumed.load_state_dict(state)
    resumed.put(record(5, loss=5.0))
    resumed.close()
    assert [row["step"] for row in lines(path)] == [*kept, 4, 5]
    assert told == [
        f"{path} is not what it was when the checkpoint was written ({found} bytes instead of {state['length']}): the "
        f"run continues, and its curves lack what was reported {lost}"
    ]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_or_replaced_is_put_back_with_all_its_lines(path: Path, replaced: bool) -> None:
    told: list[str] = []
    file = MetricsFile(path, Progress(epoch=2), told.append)
    file.put([*record(1, loss=3.0), *record(2, loss=2.0)])
    path.unlink()
    if replaced:
        path.write_text("something else\n")
    file.put(record(3, loss=1.0))
    state = file.state_dict()
    assert state["length"] == path.stat().st_size
    file.put(record(4, loss=0.0))
    file.close()
    assert [row["step"] for row in lines(path)] == [1, 2, 3, 4]
    assert told == [f"{path} was removed or replaced during the run; all its lines were written again"]


def test_a_file_that_was_emptied_while_the_run_went_on_is_told_and_gone_on_with(path: Path) -> None:
    told: list[str] = []
    file = MetricsFile(path, Progress(epoch=2), told.append)
    file.put([*record(1, loss=3.0), *record(2, loss=2.0)])
    length = path.stat().st_size
    path.write_bytes(b"")
    assert file.state_dict()["length"] == 0
    file.put(record(3, loss=1.0))
    file.close()
    assert [row["step"] for row in lines(path)] == [2, 3]
    missing = f"{length} bytes of earlier lines are missing from it"
    assert told == [f"{path} was cut off by somebody during the run: {missing}"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (True, True),
        (1.5, 1.5),
        ("word", "word"),
        (None, None),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        ([1.5, math.nan, [math.inf]], [1.5, "nan", ["inf"]]),
        ((1, 2), [1, 2]),
        ({"a": math.nan}, {"a": "nan"}),
        (np.float32(0.5), 0.5),
        (np.float64("nan"), "nan"),
        (np.float32("nan"), "nan"),
        (np.float16("inf"), "inf"),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(math.nan), "nan"),
        (torch.tensor([1.0, math.nan]), [1.0, "nan"]),
        (np.array([1.0, math.inf]), [1.0, "inf"]),
        ({"matrix": torch.tensor([[1, 2], [3, 4]])}, {"matrix": [[1, 2], [3, 4]]}),
    ],
    ids=repr,
)
def test_any_value_becomes_what_every_reader_of_json_takes(value: Any, expected: Any) -> None:
    plain = plain_number(value)
    assert plain == expected
    assert json.loads(json.dumps(plain, allow_nan=False)) == expected


def test_what_a_storage_flushes_can_be_written(file: MetricsFile, path: Path) -> None:
    storage = EventStorage()
    storage.on_flush = file.put
    for step in (1, 2):
        storage.progress.step = step
        storage.put_scalar("loss", torch.tensor(math.nan if step == 1 else 0.25))
        storage.put_scalar("count", torch.tensor(step))
        storage.flush()
    file.close()
    assert lines(path) == [
        {"step": 1, "epoch": 2, "loss": "nan", "count": 1},
        {"step": 2, "epoch": 2, "loss": 0.25, "count": 2},
    ]


def test_a_value_put_for_an_earlier_step_makes_no_second_line_of_that_step(file: MetricsFile, path: Path) -> None:
    file.put([*record(1, loss=3.0), *record(2, loss=2.0)])
    file.put(record(1, late=7.0))
    file.put(record(3, loss=1.0))
    file.close()
    steps = [row["step"] for row in lines(path)]
    assert steps == sorted(set(steps))
