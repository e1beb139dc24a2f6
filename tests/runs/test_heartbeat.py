"""A run that trains says that it does, and how far it is, in its folder."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.interrupting import make_trainer, samples
from treadle.callback import TrainerCallback
from treadle.checkpoint import checkpointer
from treadle.cli.runs import summarize_run
from treadle.progress import Progress
from treadle.runs import heartbeat
from treadle.runs.heartbeat import HEARTBEAT, Beat, Heartbeat, read_heartbeat
from treadle.runs.reader import read_run
from treadle.tools.report import ReportCallback


def test_a_run_under_way_is_running_and_says_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer, "Heartbeat", partial(Heartbeat, every=0.0))
    seen: list[tuple[Any, ...]] = []

    class Look(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            run, listed = read_run(tmp_path / "run"), summarize_run(tmp_path / "run", tmp_path)
            beat = 0 if run.heartbeat is None else run.heartbeat.step
            seen.append((run.state, listed.state, beat, listed.step, listed.limit))

    make_trainer(tmp_path / "run", Look()).train(samples(), 2, log_every=2)
    assert [one[:2] for one in seen] == [("running", "running")] * 6
    # The line of a step is written when the next one reports: the heartbeat is ahead of it.
    assert [one[2] for one in seen] == [0, 0, 2, 3, 4, 4]
    assert [one[3] for one in seen] == [0, 0, 2, 3, 4, 4]
    assert {one[4] for one in seen} == {6}
    assert read_run(tmp_path / "run").state == "finished"


def test_signs_of_life_are_no_more_frequent_than_anybody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(heartbeat.time, "time", lambda: 1000.0 + now[0])
    progress = Progress()
    one = Heartbeat(tmp_path, progress, every=2.0)
    found = []
    for _ in range(5):
        progress.step += 1
        one.beat()
        found.append(read_heartbeat(tmp_path))
        now[0] += 1.0
    first, second, third = Beat(1100.0, 1), Beat(1102.0, 3), Beat(1104.0, 5)
    assert found == [first, first, second, second, third]
    # A new start may have gone back.
    Heartbeat(tmp_path, progress)
    assert read_heartbeat(tmp_path) is None


@pytest.mark.parametrize("content", ["", "[]", "{", '{"time": "now", "step": 1}', '{"time": 1.0, "step": -1}'])
def test_what_is_no_sign_of_life_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / HEARTBEAT).write_text(content)
    assert read_heartbeat(tmp_path) is None


def test_a_folder_that_cannot_be_written_stops_no_run(tmp_path: Path) -> None:
    Heartbeat(tmp_path / "gone", Progress()).beat()
    assert not (tmp_path / "gone").exists()


def test_a_page_that_a_run_writes_at_its_end_says_finished_and_has_its_facts(tmp_path: Path) -> None:
    make_trainer(tmp_path / "run", ReportCallback()).train(samples(), 2)
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    told = json.loads(text.partition('id="data">')[2].partition("</script>")[0])["runs"][0]
    model = make_trainer(None).model
    assert told["state"] == "finished"
    assert told["parameters"] == {"trained": sum(one.numel() for one in model.parameters()), "frozen": 0}
    assert told["device"] == "cpu"
