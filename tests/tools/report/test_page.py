"""A page is one file: complete, under 5 MB, and safe whatever a run is called or wrote."""

import base64
import errno
import gzip
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.interrupting import make_trainer, samples
from tests.tools.report.runs import make_run, rows_of
from treadle.errors import CheckpointError, ConfigError, MissingDependencyError
from treadle.runs.panels import write_table
from treadle.runs.reader import Run, read_run
from treadle.tools.report import ReportCallback, page, write_report
from treadle.tools.report.page import render_page

NASTY = '</script><script>alert("x")</script><img src=x onerror=alert(1)>'


NO_ICON = "data:,"
"""Without it a browser would ask the server for one."""


class Scripts(HTMLParser):
    """Collects what stands in the scripts of a page, and every address that it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[tuple[str | None, str]] = []
        self.addresses: list[str] = []
        self._kind: str | None = None
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [value for name, value in attrs if name in ("src", "href") and value]
        if tag == "script":
            self._inside, self._kind = True, found.get("id")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts.append((self._kind, data))


def scripts_of(text: str) -> Scripts:
    parser = Scripts()
    parser.feed(text)
    return parser


def test_a_page_is_one_file_under_5_mb_that_loads_nothing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "first", rows_of([float(step) for step in range(20_000)], accuracy=0.5))
    target = write_report([folder])
    assert target == folder / "report.html"
    text = target.read_text(encoding="utf-8")
    assert len(text.encode()) < 5_000_000
    found = scripts_of(text)
    assert found.addresses == [NO_ICON]
    assert "default-src 'none'" in text
    data = json.loads(dict(found.scripts)["data"])
    assert len(data["runs"][0]["series"]["train_loss"]["step"]) == 1000


def test_the_drawing_program_is_on_the_page_whole() -> None:
    packed = dict(scripts_of(render_page([])).scripts)["plotly"]
    source = gzip.decompress(base64.b64decode(packed)).decode()
    assert source == (page.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def test_nothing_that_a_run_wrote_becomes_a_part_of_the_page(tmp_path: Path) -> None:
    run = Run(NASTY, tmp_path, rows=[{"step": 1, NASTY: 1.0}], config={NASTY: NASTY}, log=NASTY)
    text = render_page([run])
    found = scripts_of(text)
    assert [kind for kind, _ in found.scripts] == ["data", "plotly", None, None]
    assert json.loads(dict(found.scripts)["data"])["runs"][0]["name"] == NASTY
    assert found.addresses == [NO_ICON]
    assert re.search(r"<title>&lt;/script&gt;", text)


def test_runs_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name / "run", rows_of([1.0])) for name in ("a", "b")]
    text = write_report(folders, tmp_path / "pages" / "both.html").read_text(encoding="utf-8")
    names = [run["name"] for run in json.loads(dict(scripts_of(text).scripts)["data"])["runs"]]
    assert names == ["a/run", "b/run"]
    assert "<h1>2 runs</h1>" in text


def test_a_page_of_several_runs_may_have_a_title_and_panels_of_its_own(tmp_path: Path) -> None:
    write_table(tmp_path / "all", "Who is best", ["run"], [["second"]])
    runs = [make_run(tmp_path / name, rows_of([2.0])) for name in ("first", "second")]
    text = write_report(runs, tmp_path / "page.html", together=tmp_path / "all", title="Two & more").read_text()
    assert "<title>Two &amp; more · Treadle</title>" in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))  # type: ignore[union-attr]
    assert [panel["title"] for panel in data["panels"]] == ["Who is best"]


def test_without_plotly_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    page.plotly_source.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(MissingDependencyError, match=r"a report needs plotly; pip install 'treadle\[report\]'"):
        ReportCallback()


def test_a_page_is_not_written_under_a_name_of_another_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"page.pdf: a report is a page of HTML; give it a name that ends in .html"):
        write_report([tmp_path], tmp_path / "page.pdf")


def test_a_page_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "first", rows_of([1.0]))
    with pytest.raises(CheckpointError, match="cannot write the page"):
        write_report([folder], folder / "log.txt" / "page.html")


def test_a_disk_that_fills_up_leaves_the_earlier_page_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "first", rows_of([1.0]))
    told: list[str] = []
    earlier = page.write_final_report([folder], told.append)
    assert earlier == folder / "report.html"
    before = earlier.read_bytes()

    def write_a_part(path: Path, text: str, **kwargs: object) -> int:
        path.write_bytes(text.encode()[:1000])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", write_a_part)
    assert page.write_final_report([folder], told.append) is None
    assert len(told) == 1
    assert re.fullmatch(r"cannot write the page .*first/report\.html: .*No space left on device.*", told[0])
    assert earlier.read_bytes() == before
    assert not list(folder.glob(".report*"))


def test_runs_that_ended_need_no_plotly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    told: list[str] = []
    assert page.write_final_report([make_run(tmp_path / "first", rows_of([1.0]))], told.append) is None
    assert told == []


def test_the_callback_writes_the_page_of_the_whole_run_also_of_one_that_failed(tmp_path: Path) -> None:
    make_trainer(tmp_path / "run", ReportCallback()).train(samples(), 2)
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    shown = json.loads(dict(scripts_of(text).scripts)["data"])["runs"][0]
    rows = read_run(tmp_path / "run").rows
    assert shown["series"]["train_loss_epoch"]["step"] == [row["step"] for row in rows]
    assert shown["step"] == rows[-1]["step"] == 6

    class Failing(ReportCallback):
        def on_train_epoch_end(self, trainer: object, **kwargs: object) -> None:
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        make_trainer(tmp_path / "failed", Failing()).train(samples(), 2)
    assert (tmp_path / "failed" / "report.html").is_file()


def test_the_callback_needs_a_folder() -> None:
    with pytest.raises(ConfigError, match=r"ReportCallback writes report\.html into the folder of the run"):
        make_trainer(None, ReportCallback()).train(samples(), 1)


def test_a_full_disk_does_not_fail_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run" / "report.html").mkdir(parents=True)
    make_trainer(tmp_path / "run", ReportCallback()).train(samples(), 1)
    assert "cannot write the page" in capsys.readouterr().out
