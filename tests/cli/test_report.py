"""`treadle report`: pages of runs from a shell."""

from pathlib import Path

from tests.cli.conftest import Treadle

CONFIG = "configs/small.py"


def test_training_writes_the_page_and_report_writes_it_anew_or_elsewhere(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG)
    page = Path("runs/small/report.html")
    first = page.read_text(encoding="utf-8")
    assert '"state":"finished"' in first
    page.unlink()
    assert treadle("report", "runs/small").stdout == "runs/small/report.html\n"
    assert page.read_text(encoding="utf-8") == first
    treadle("train", CONFIG, "train.train_iter=1", "-o", "runs/other")
    assert treadle("report", "runs", "-o", "all.html").stdout == "all.html\n"
    assert '"name":"other"' in Path("all.html").read_text(encoding="utf-8")


def test_mistakes_are_one_message(project: Path, treadle: Treadle) -> None:
    assert "runs/none is not there" in treadle("report", "runs/none", status=1).stderr
    assert "--serve writes no file" in treadle("report", "runs", "--serve", "-o", "x.html", status=1).stderr
