"""One odd file makes its own run look odd, and no other."""

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.tools.report.runs import make_run, rows_of
from treadle.cli import app
from treadle.cli.runs import summarize_run
from treadle.events import names
from treadle.runs.metric_rows import WALL_TIME, FileRows, MetricLines
from treadle.runs.reader import read_any_run, read_run
from treadle.tools.report import write_report
from treadle.tools.report.payload import build_payload
from treadle.tools.report.server import ReportServer

BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 8)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {k: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 8)}]}}\n"
    for before, name in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


def spoil_with(name: str, content: bytes) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        (run / name).write_bytes(content)

    return spoil


def pipe(name: str) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return spoil


def line(**row: Any) -> bytes:
    return json.dumps(row).encode() + b"\n"


def holes(name: str) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        with (run / name).open("wb") as file:
            file.truncate(2**42)

    return spoil


NESTED = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "NUL in last": (spoil_with("checkpoints/last", b"step\0"), "checkpoints/last names no checkpoint"),
    "a way out in last": (spoil_with("checkpoints/last", b"../../x"), "checkpoints/last names no checkpoint"),
    "a file of holes": (holes("metrics.jsonl"), "metrics.jsonl has a line of more than 67,108,864 bytes"),
    **{
        f"a number that is too long, {number[:2]}..{number[-2:]}": (
            spoil_with("config.yaml", f"train: {{a: {number}}}\n".encode()),
            "config.yaml has a number of more than 300 characters",
        )
        for number in ("0x" + "F" * 20_000, "9" * 4_000, "1" + ":59" * 20_000, "1" + ":59" * 2_000 + ".5")
    },
    "text as step": (
        spoil_with("metrics.jsonl", line(step="x", loss=1.0) + line(step=1, loss=2.0)),
        "metrics.jsonl has 1 line that is no metrics of a step",
    ),
    "Infinity as step": (
        spoil_with("metrics.jsonl", b'{"step": Infinity}\n{"step": NaN}\n'),
        "metrics.jsonl has 2 lines that are no metrics of a step",
    ),
    "text as moment": (spoil_with("metrics.jsonl", line(step=1, wall_time="now", time="x", loss=1.0)), ""),
    "nested metrics": (spoil_with("metrics.jsonl", NESTED + b"\n"), "metrics.jsonl has 1 line that is no metrics"),
    "nested manifest": (spoil_with("manifest.json", NESTED), "manifest.json holds no JSON object"),
    "nested status": (spoil_with("status.json", NESTED), "status.json holds no JSON object"),
    "a list as manifest": (spoil_with("manifest.json", b"[1]"), "manifest.json holds no JSON object"),
    "numbers in status": (spoil_with("status.json", b'{"state": 3, "message": []}'), ""),
    "an alias bomb": (spoil_with("config.yaml", BOMB.encode()), "config.yaml has more than 20,000 values"),
    "a merge bomb": (spoil_with("config.yaml", MERGES.encode()), "config.yaml cannot be read"),
    "a config in itself": (spoil_with("config.yaml", b"a: &a [*a]"), "or parts that hold themselves"),
    "a nested config": (spoil_with("config.yaml", b"[" * 20_000), "config.yaml cannot be read"),
    "a large config": (spoil_with("config.yaml", b"#" * 2**21), "config.yaml has 2,097,152 bytes"),
    "a pipe for metrics": (pipe("metrics.jsonl"), "metrics.jsonl is no regular file"),
    "a pipe for a config": (pipe("config.yaml"), "config.yaml is no regular file"),
    "a pipe for a log": (pipe("log.txt"), "log.txt is no regular file"),
    "a pipe for a status": (pipe("status.json"), "status.json is no regular file"),
    "a pipe for last": (pipe("checkpoints/last"), "last is no regular file"),
    "a folder for metrics": (lambda run: ((run / "metrics.jsonl").unlink(), (run / "metrics.jsonl").mkdir())[1], ""),
    "words as planned": (
        spoil_with("checkpoints/step_00000010/manifest.json", b'{"step": "ten", "planned": "many"}'),
        "",
    ),
    "a huge number": (spoil_with("metrics.jsonl", b'{"step": 1, "loss": 1' + b"0" * 400 + b"}\n"), ""),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_makes_its_own_run_odd_and_no_other(name: str, tmp_path: Path) -> None:
    spoil, problem = ODD[name]
    folders = [make_run(tmp_path / "runs" / run, rows_of([2.0, 1.0])) for run in ("good", "odd")]
    spoil(folders[1])
    with ReportServer([tmp_path / "runs"]) as server:
        for payload in (build_payload([read_any_run(one) for one in folders]), json.loads(server.data()[1])):
            good, odd = payload["runs"]
            assert (good["name"], good["message"], good["step"]) == ("good", "", 2)
            assert odd["name"] == "odd"
            assert problem in odd["message"]
    facts = summarize_run(folders[1], tmp_path / "runs")
    assert problem in "; ".join(facts.problems)
    assert summarize_run(folders[0], tmp_path / "runs").problems == ()


def test_a_list_of_runs_says_what_is_wrong_with_one_of_them(tmp_path: Path) -> None:
    make_run(tmp_path / "good", rows_of([2.0, 1.0]))
    ODD["an alias bomb"][0](make_run(tmp_path / "odd", rows_of([2.0])))
    result = CliRunner().invoke(app, ["runs", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "good" in result.output
    assert "odd: config.yaml has more than 20,000 values" in result.output


def test_a_run_that_nobody_has_thought_of_is_shown_as_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [make_run(tmp_path / name, rows_of([1.0])) for name in ("good", "odd")]

    def strange(path: Path, name: str | None = None) -> Any:
        if path.name == "odd":
            raise ZeroDivisionError("what?")
        return read_run(path, name)

    monkeypatch.setattr("treadle.runs.reader.read_run", strange)
    shown = build_payload([read_any_run(one) for one in folders])["runs"]
    assert [(run["state"], run["message"]) for run in shown] == [
        ("finished", ""),
        ("unreadable", "ZeroDivisionError: what?"),
    ]
    assert (summarize_run(folders[1], tmp_path).state, summarize_run(folders[1], tmp_path).problems) == (
        "unreadable",
        ("ZeroDivisionError: what?",),
    )
    assert write_report(folders, tmp_path / "page.html").is_file()


def test_names_are_not_obeyed_by_the_terminal(tmp_path: Path) -> None:
    make_run(tmp_path / "clear\x1b[2Jme", rows_of([1.0]))
    result = CliRunner().invoke(app, ["runs", str(tmp_path)], env={"COLUMNS": "200"})
    assert "\x1b" not in result.output
    assert r"clear\x1b[2Jme" in result.output
    complaint = CliRunner().invoke(app, ["report", str(tmp_path / "no\x1b]0;title\x07")])
    assert "\x1b" not in complaint.output
    assert r"no\x1b]0;title\x07" in complaint.output


def test_a_checkpoint_that_disappears_while_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path / "run", rows_of([1.0]))
    listed = Path.iterdir

    def vanishing(path: Path) -> Any:
        found = list(listed(path))
        if path.name.startswith("step_"):
            for file in found:
                file.unlink()
        return iter(found)

    monkeypatch.setattr(Path, "iterdir", vanishing)
    assert read_run(folder).checkpoints == ()


# Metrics that are read as they come ---------------------------------------------------------------------------


def fed(lines: MetricLines) -> list[int]:
    return [row["step"] for rows in lines.read() for row in rows]


def test_only_what_was_added_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = MetricLines(path)
    assert fed(lines) == []
    path.write_bytes(line(step=1) + line(step=2) + b'{"step": 3')
    assert fed(lines) == [1, 2]
    with path.open("ab") as file:
        file.write(b"}\n" + line(step=4))
    assert not lines.is_outdated()
    assert fed(lines) == [3, 4]
    assert fed(lines) == []


def test_a_file_that_was_cut_and_written_on_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(step=1, loss=1.0) + line(step=2, loss=1.0))
    lines = MetricLines(path)
    assert fed(lines) == [1, 2]
    path.write_bytes(line(step=1, loss=1.0) + line(step=2, loss=9.0) + line(step=3, loss=9.0))
    assert lines.is_outdated()
    path.unlink()
    assert lines.is_outdated()


def test_a_line_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(step=1) + b"x" * 5_000_000 + b"\n" + line(step=2))
    lines = MetricLines(path)
    assert fed(lines) == [1, 2]
    assert lines.skipped == 1


def test_a_server_sees_lines_that_a_resumed_run_took_back(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", rows_of([3.0, 2.0, 1.0]))
    with ReportServer([tmp_path]) as server:
        first = json.loads(server.data()[1])["runs"][0]
        assert first["series"]["train_loss"]["value"] == [3.0, 2.0, 1.0]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of([3.0, 2.0, 0.5, 0.25])))
        second = json.loads(server.data()[1])["runs"][0]
        assert second["series"]["train_loss"]["value"] == [3.0, 2.0, 0.5, 0.25]
        assert server.data() is server.data()  # made once for all that ask


def test_a_server_that_reads_bit_by_bit_shows_what_one_pass_shows(tmp_path: Path) -> None:
    rows = rows_of([float(step % 7) for step in range(300)], eval_loss_epoch=0.5)
    folder = make_run(tmp_path / "run", rows[:10])
    with ReportServer([tmp_path]) as server:
        for end in (10, 11, 50, 300):
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:end]))
            shown = json.loads(server.data()[1])
        assert shown == json.loads(json.dumps(build_payload([read_run(folder, "run")])))


def test_a_long_run_is_listed_and_shown_in_little_memory(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [])
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(12_000):
            file.write(f'{{"step": {step}, "wall_time": {1767225600 + step}, "train_loss": {1000 - step % 1000}.5}}\n')
    summarize_run(folder, tmp_path)
    tracemalloc.start()
    summarize_run(folder, tmp_path)
    listed = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    series = build_payload([read_run(folder)])["runs"][0]["series"]["train_loss"]
    shown = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A block of lines, and some screens of points, whatever the length: all rows of this file take 8 MB.
    assert listed < 2.5e6
    assert shown < 5e6
    assert len(series["step"]) <= 1000
    assert (min(series["value"]), max(series["value"])) == (1.5, 1000.5)
    assert (series["step"][0], series["step"][-1]) == (0, 11_999)
    assert len(FileRows(folder / "metrics.jsonl")) == 12_000


def test_the_time_of_a_row_has_the_name_that_runs_give_it() -> None:
    assert names.WALL_TIME == WALL_TIME
