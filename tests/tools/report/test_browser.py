"""The page in a browser: it is drawn, and what can be clicked works."""

import json
import re
from html import unescape
from pathlib import Path

import pytest

from benchmarks.docs.browser import ABSENT, find_browser, opened
from tests.tools.report.runs import make_run, rows_of
from treadle.tools.report import write_report

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_browser() is None, reason=ABSENT)]
CLICKS = """<script>
(async () => {
  const report = {};
  while (document.body.dataset.ready !== "yes") await new Promise((done) => setTimeout(done, 20));
  const curves = () => document.querySelector(".plot").data.filter((trace) => trace.x[0] !== null);
  const plot = () => document.querySelector(".plot");
  report.titles = [...document.querySelectorAll("h3")].map((one) => one.textContent);
  report.before = curves().map((trace) => trace.name);
  document.querySelectorAll("#runs input")[0].click();
  report.toggled = curves().map((trace) => trace.name);
  report.off = document.querySelectorAll(".run.off").length;
  document.querySelectorAll("#runs input")[0].click();
  report.again = curves().length;
  const slider = document.getElementById("smoothing");
  slider.value = "0.5"; slider.dispatchEvent(new Event("input"));
  report.smooth = curves().filter((trace) => trace.opacity === undefined)[0].y;
  document.getElementById("axis").value = "seconds"; document.getElementById("axis").dispatchEvent(new Event("change"));
  report.axis = plot().layout.xaxis.title.text;
  document.getElementById("logarithmic").click();
  report.scale = plot().layout.yaxis.type;
  const theme = document.documentElement.dataset.theme;
  document.getElementById("theme").click();
  report.themed = document.documentElement.dataset.theme !== theme;
  report.restarts = plot().layout.shapes.length;
  report.wide = document.documentElement.scrollWidth <= document.documentElement.clientWidth;
  const told = document.createElement("output");
  told.id = "told"; told.textContent = JSON.stringify(report);
  document.body.append(told);
})();
</script>"""


def test_runs_are_toggled_curves_smoothed_axes_and_theme_switched(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / "first", rows_of([4.0, 2.0, 1.0]), starts=2),
        make_run(tmp_path / "second", rows_of([8.0, 6.0]), config="lr: 0.2\n"),
    ]
    target = write_report(folders, tmp_path / "both.html")
    target.write_text(target.read_text(encoding="utf-8").replace("</body>", CLICKS + "</body>"), encoding="utf-8")
    told = told_by(target)
    assert told == {
        "titles": ["Loss"],
        "before": ["first", "second"],
        "toggled": ["second"],
        "off": 1,
        "again": 2,
        # Debiased: 4, (0.5 * 2 + 0.25 * 4) / 0.75, (0.5 * 1 + 0.25 * 2 + 0.125 * 4) / 0.875
        "smooth": pytest.approx([4.0, 8 / 3, 12 / 7]),
        "axis": "training time, seconds",
        "scale": "log",
        "themed": True,
        "restarts": 0,
        "wide": True,
    }


COLOURS = """<script>
(async () => {
  while (document.body.dataset.ready !== "yes") await new Promise((done) => setTimeout(done, 20));
  const plain = (colour) => {
    const one = document.createElement("i");
    one.style.background = colour;
    return one.style.background;
  };
  const all = (chosen) => [...document.querySelectorAll(chosen)];
  const pair = (mark) => [mark.dataset.run, mark.style.background];
  const marks = (place) => Object.fromEntries(all(`${place} .mark`).map(pair));
  const drawn = (plot) => plot.data.filter((one) => one.x[0] !== null);
  const curves = (plot) => Object.fromEntries(drawn(plot).map((one) => [one.name, plain(one.line.color)]));
  const report = { light: marks("#runs"), table: marks("td"), charts: all(".plot").map(curves) };
  all(".run")[3].dispatchEvent(new Event("mouseenter"));
  report.pointed = drawn(all(".plot")[0]).filter((one) => one.opacity === undefined).map((one) => one.name);
  data.runs.reverse(); show();
  report.reversed = marks("#runs");
  document.getElementById("theme").click();
  report.dark = marks("#runs");
  report.table_dark = marks("td");
  const told = document.createElement("output");
  told.id = "told"; told.textContent = JSON.stringify(report);
  document.body.append(told);
})();
</script>"""


def test_every_run_has_a_colour_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    names = [f"run{number:02}" for number in range(15)]
    folders = [make_run(tmp_path / name, rows_of([2.0, 1.0], eval_accuracy=0.5)) for name in names]
    target = write_report(folders, tmp_path / "all.html")
    target.write_text(target.read_text(encoding="utf-8").replace("</body>", COLOURS + "</body>"), encoding="utf-8")
    told = told_by(target)
    assert isinstance(told, dict)
    for theme in ("light", "dark"):
        assert sorted(told[theme]) == names
        assert len(set(told[theme].values())) == len(names)
    assert told["charts"] == [told["light"]] * 2
    assert told["table"] == told["light"]
    assert told["reversed"] == told["light"]
    assert told["table_dark"] == told["dark"]
    assert told["pointed"] == ["run03"]


def told_by(page: Path) -> object:
    """Open a page and return what its clicks reported."""
    shown = opened(page, "--dump-dom")
    found = re.search(r'<output id="told">(.*?)</output>', shown, re.DOTALL)
    assert found is not None, shown[-2000:]
    return json.loads(unescape(found[1]))
