"""What a search leaves in its folder for its page."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from tests.search.support import Judge, Net
from tests.search.test_plots import results, trial
from treadle import nas, search
from treadle.cli.application import app
from treadle.runs.reader import find_runs, is_search, read_run
from treadle.search.plots import panels


def square(setting: dict[str, Any]) -> float:
    return float(setting["x"] ** 2)


def titles(folder: Path) -> list[str]:
    """Return what the page of a search shows."""
    return [panel.title for panel in read_run(folder).panels]


def test_a_search_shows_its_trials_and_a_table_of_the_best(tmp_path: Path) -> None:
    folder = tmp_path / "squares"
    nas.Search({"x": nas.one_of(1, 3, 2)}, square, strategy=nas.Grid(shuffle=False), run_dir=folder).run()
    assert titles(folder) == ["best trials", "parallel coordinates", "trials"]
    table = read_run(folder).panels[0]
    assert table.columns == ("trial", "default", "x")
    assert table.rows == ((1, 9.0, 3), (2, 4.0, 2), (0, 1.0, 1))


def test_the_page_shows_what_matters_the_curves_of_trials_and_their_folders(tmp_path: Path) -> None:
    def judge(setting: dict[str, Any]) -> float:
        folder = search.this_trial().run_dir
        assert folder is not None
        folder.mkdir(parents=True)
        nas.report_intermediate_result(0.0)
        nas.report_intermediate_result(setting["x"])
        return float(setting["x"])

    space = {"x": nas.one_of(1, 2, 3, 4), "y": nas.one_of(1, 2)}
    nas.Search(space, judge, strategy=nas.Grid(shuffle=False), run_dir=tmp_path).run()
    assert titles(tmp_path) == ["best trials", "importance", "intermediate results", "parallel coordinates", "trials"]
    table = read_run(tmp_path).panels[0]
    assert table.columns == ("trial", "folder", "default", "x", "y")
    assert table.rows[0] == (6, "trials/0006", 4.0, 4, 1)


def test_the_page_of_a_search_says_how_many_trials_there_are_and_what_is_searched(tmp_path: Path) -> None:
    folder = tmp_path / "squares"
    nas.Search({"x": nas.one_of(1, 2)}, square, strategy="grid", run_dir=folder).run()
    run = read_run(folder)
    assert (run.state, run.message) == ("finished", "2 trials")
    assert run.config["strategy"] == "grid"


def test_a_search_of_networks_shows_the_best_of_them(tmp_path: Path) -> None:
    judge = Judge(None, steps=1)  # type: ignore[arg-type]
    found = nas.Search(Net, judge, strategy=nas.Grid(), run_dir=tmp_path / "nets").run()
    assert "best architecture" in titles(tmp_path / "nets")
    drawing = ElementTree.parse(tmp_path / "nets" / "panels" / "best_architecture.svg")
    words = {element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert f"The best architecture, of trial {found['best']['number']}" in words
    assert {str(value) for value in found["best"]["parameters"].values()} <= words


def test_of_several_objectives_the_front_is_shown_and_only_its_trials_are_in_the_table(tmp_path: Path) -> None:
    both = {"gain": "maximize", "cost": "minimize"}
    nas.Search(
        {"x": nas.one_of(1, 2, 3)},
        lambda setting: {"gain": min(setting["x"], 2), "cost": setting["x"]},
        strategy=nas.Grid(shuffle=False),
        objectives=both,
        run_dir=tmp_path,
    ).run()
    assert titles(tmp_path) == ["best trials", "parallel coordinates", "pareto front", "trials"]
    assert read_run(tmp_path).panels[0].rows == ((1, 2.0, 2.0, 2), (0, 1.0, 1.0, 1))


def test_while_trials_run_they_are_drawn_when_the_last_drawings_are_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels, "PAUSE", -1.0)
    monkeypatch.setattr(panels, "SHARE", 0)
    seen: list[tuple[str, int]] = []

    def looking(setting: dict[str, Any]) -> float:
        run = read_run(tmp_path) if is_search(tmp_path) else None
        seen.append(("nothing", 0) if run is None else (run.state, len(run.panels[0].rows)))
        return square(setting)

    nas.Search({"x": nas.one_of(1, 2, 3)}, looking, strategy="grid", run_dir=tmp_path).run()
    assert seen == [("nothing", 0), ("unfinished", 1), ("unfinished", 2)]


def test_a_search_whose_trials_are_elsewhere_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nas.Search({"x": nas.one_of(1, 2)}, square, strategy="grid", store="memory").run()
    assert not list(tmp_path.iterdir())


def test_a_table_of_the_best_has_no_trial_twice_and_at_most_twenty(tmp_path: Path) -> None:
    many = [trial(number, float(number)) for number in range(25)]
    panels.write_panels(results(*many, trial(25, 24.0, replayed_from=24)), tmp_path)
    rows = json.loads((tmp_path / "panels" / "best_trials.json").read_text())["rows"]
    assert [row[0] for row in rows] == list(range(24, 4, -1))


def test_treadle_report_makes_the_page_of_a_search_and_not_of_its_trials(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    nas.Search({"x": nas.one_of(1, 2)}, square, strategy="grid", run_dir=tmp_path / "squares").run()
    (tmp_path / "squares" / "trials" / "0000" / "checkpoints").mkdir(parents=True)
    assert [path.name for path in find_runs(tmp_path)] == ["squares", "0000"]
    done = CliRunner().invoke(app, ["report", str(tmp_path / "squares")])
    assert done.output.split() == [str(tmp_path / "squares" / "report.html")]
    page = (tmp_path / "squares" / "report.html").read_text()
    assert '"panels":[{"title":"best trials"' in page
    assert '"name":"0000"' not in page
