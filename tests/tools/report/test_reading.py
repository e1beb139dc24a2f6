"""What the folder of a run holds is read as it is; what is missing is left out, and nothing is run."""

import json
import shutil
from pathlib import Path

import pytest

from tests.interrupting import make_trainer, samples
from tests.tools.report.runs import make_run, rows_of
from treadle.errors import ConfigError
from treadle.runs.reader import Checkpoint, Panel, Start, read_run
from treadle.tools.report.payload import build_payload


def test_all_parts_of_a_folder_are_read(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "first", rows_of([2.0, 1.0]), starts=2))
    assert (run.name, run.state, run.config, run.log) == ("first", "finished", {"lr": 0.1}, "epoch 1\nepoch 2\n")
    assert [row["train_loss"] for row in run.rows] == [2.0, 1.0]
    assert run.starts == (Start(0, 1767225600.0), Start(10, 1767225660.0))
    size = 2000 + len(json.dumps({"step": 10, "finished": True}))
    assert run.checkpoints == (Checkpoint(10, size, ("last",)),)


def test_a_folder_that_is_no_run_is_refused_with_what_a_run_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the folder of a run; the folder of a run holds checkpoints/"):
        read_run(tmp_path)
    with pytest.raises(ConfigError, match="missing is not there"):
        read_run(tmp_path / "missing")


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "manifest.json", "log.txt", "checkpoints/last"])
def test_a_run_that_lacks_a_file_is_shown_without_it(tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path / "first", rows_of([2.0, 1.0]))
    (folder / name).unlink()
    payload = build_payload([read_run(folder)])
    assert [run["name"] for run in payload["runs"]] == ["first"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "manifest.json", "log.txt", "checkpoints/last"])
def test_a_file_full_of_nonsense_spoils_nothing_else(tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path / "first", rows_of([2.0, 1.0]))
    (folder / name).write_bytes(b"\xff{[: !!python/object:os.system &")
    assert build_payload([read_run(folder)])["runs"][0]["name"] == "first"


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "first", rows_of([2.0, 1.0]))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "train_l')
    assert len(read_run(folder).rows) == 2


def test_tags_in_a_config_are_read_as_the_data_under_them(tmp_path: Path) -> None:
    config = "betas: !!python/tuple [0.9, 0.95]\npath: !path a/b\nmodel: !target\n  width: 3\n"
    run = read_run(make_run(tmp_path / "first", [], config=config.replace("!!python/tuple", "!tuple")))
    assert run.config == {"betas": [0.9, 0.95], "path": "a/b", "model": {"width": 3}}


def test_panels_are_pictures_and_tables_named_by_their_files(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "first", [])
    (folder / "panels").mkdir()
    (folder / "panels" / "best_cell.svg").write_text("<svg/>")
    (folder / "panels" / "groups.json").write_text('{"columns": ["group", "users"], "rows": [["new", 3]]}')
    (folder / "panels" / "broken.json").write_text('{"columns": "group", "rows": 3}')
    shown = (Panel("best cell", svg="<svg/>"), Panel("groups", columns=("group", "users"), rows=(("new", 3),)))
    assert read_run(folder).panels == shown


def test_the_folder_that_a_trainer_writes_is_read(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "run")
    trainer.train(samples(), 2, samples(8), log_every=1)
    run = read_run(tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert run.state == "finished"
    assert run.rows == [json.loads(line) for line in lines]
    assert run.config["optimizers"]["optimizer"]["lr"] == trainer.optimizer.defaults["lr"]
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_00000006", ignore_errors=True)
    assert read_run(tmp_path / "run").rows == run.rows
