"""What a one-shot search leaves in its folder for its page."""

from pathlib import Path
from typing import Any

import pytest

from tests.nas.small import make
from treadle import nas
from treadle.runs.reader import read_run
from treadle.tools.report.charts import group_charts

WEIGHING: list[Any] = [nas.DartsTrainer, nas.EnasTrainer]


@pytest.mark.parametrize("kind", WEIGHING, ids=["darts", "enas"])
def test_the_architecture_and_how_its_weights_went_are_on_the_page(tmp_path: Path, kind: Any) -> None:
    trainer = make(kind, run_dir=tmp_path)
    trainer.fit()
    run = read_run(tmp_path)
    assert [panel.title for panel in run.panels] == ["architecture", "architecture weights"]
    assert run.panels[0].svg == nas.draw(trainer.export(), trainer.model)
    assert run.panels[1].svg == nas.draw_weights(nas.weights_over_time(tmp_path), columns=2)


def test_spos_shows_its_architecture_alone(tmp_path: Path) -> None:
    make(nas.SposTrainer, run_dir=tmp_path).fit()
    assert [panel.title for panel in read_run(tmp_path).panels] == ["architecture"]


def test_a_search_without_a_folder_draws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(nas.DartsTrainer).fit()
    assert not list(tmp_path.iterdir())


def test_the_page_that_a_callback_writes_has_the_pictures_in_it(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    from treadle.tools.report import ReportCallback

    make(nas.DartsTrainer, run_dir=tmp_path, callbacks=(ReportCallback,)).fit()
    assert '"title":"architecture weights"' in (tmp_path / "report.html").read_text()


def test_a_picture_that_cannot_be_drawn_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("treadle.nas.oneshot.trainer.draw", fail)
    assert make(nas.DartsTrainer, run_dir=tmp_path).fit().steps > 0
    assert "no picture of the architecture: the disk is full" in capsys.readouterr().out


def fail(*arguments: Any, **keywords: Any) -> str:
    raise OSError("the disk is full")


def test_weights_of_candidates_are_one_chart_for_each_row() -> None:
    names = ["architecture/layer/deep", "architecture/layer/flat", "architecture/skip/0", "train_loss"]
    assert [(chart.section, chart.title, chart.metrics) for chart in group_charts(names)] == [
        ("Curves", "Loss", ("train_loss",)),
        ("Architecture", "architecture/layer", ("architecture/layer/deep", "architecture/layer/flat")),
        ("Architecture", "architecture/skip", ("architecture/skip/0",)),
    ]
