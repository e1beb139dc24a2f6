"""The page in a browser: it is drawn, what can be clicked works, and it follows a run that trains."""

import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from benchmarks.docs.browser import ABSENT, find_browser, looked_at
from tests.tools.report.runs import make_run, rows_of
from treadle.tools.report import write_report
from treadle.tools.report.server import ReportServer

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_browser() is None, reason=ABSENT)]
BEGIN = """<script>
(async () => {
  const report = {};
  const until = async (holds) => { while (!holds()) await new Promise((done) => setTimeout(done, 20)); };
  await until(() => document.body.dataset.ready === "yes");
  const all = (chosen) => [...document.querySelectorAll(chosen)];
  const plot = () => document.querySelector(".plot");
  const text = (one) => one.textContent;
  const set = (id, value, event) => {
    document.getElementById(id).value = value;
    document.getElementById(id).dispatchEvent(new Event(event));
  };
"""
END = """
  const told = document.createElement("output");
  told.id = "told"; told.textContent = JSON.stringify(report);
  document.body.append(told);
})();
</script></body>"""


def clicked(page: Path | str, clicks: str = "") -> Any:
    """Open a page, have a program click on it, and return what that reported; the page has no errors."""
    if isinstance(page, Path):
        page.write_text(page.read_text(encoding="utf-8").replace("</body>", BEGIN + clicks + END), encoding="utf-8")
    shown, console = looked_at(page, "--dump-dom", "--window-size=1400,1600")
    assert console == []
    found = re.search(r'<output id="told">(.*?)</output>', shown, re.DOTALL)
    assert found is not None, shown[-2000:]
    return json.loads(unescape(found[1]))


def noisy(count: int) -> list[float]:
    chance = random.Random(0)
    return [2.0 + chance.gauss(0.0, 0.5) for _ in range(count)]


def smoothed(values: list[float], amount: float) -> list[float]:
    """Return the averages, by their definition: weights fall by `amount`, once looking back and once looking ahead."""

    def back(values: list[float]) -> list[float]:
        found = []
        for end in range(1, len(values) + 1):
            weights = [amount ** (end - 1 - place) for place in range(end)]
            found.append(sum(w * v for w, v in zip(weights, values, strict=False)) / sum(weights))
        return found

    return [(one + other) / 2 for one, other in zip(back(values), back(values[::-1])[::-1], strict=True)]


def test_runs_are_toggled_noisy_curves_smoothed_axes_and_theme_switched(tmp_path: Path) -> None:
    values = noisy(40)
    falling = [8.0 - 0.1 * step for step in range(40)]
    folders = [
        make_run(tmp_path / "first", rows_of(values, lr=0.1), starts=2),
        make_run(tmp_path / "second", rows_of(falling, lr=0.1), config="lr: 0.2\n"),
    ]
    told = clicked(
        write_report(folders, tmp_path / "both.html"),
        """
  const curves = () => plot().data.filter((trace) => !(trace.opacity < 1));
  report.titles = all("h3").map(text);
  report.before = curves().map((trace) => trace.name);
  all("#runs input")[0].click();
  report.toggled = curves().map((trace) => trace.name);
  report.off = all(".run.off").length;
  all("#runs input")[0].click();
  report.again = curves().length;
  set("smoothing", "0.5", "input");
  report.smooth = curves()[0].y;
  report.behind = plot().data.filter((trace) => trace.opacity < 1).map((trace) => trace.name);
  report.straight = curves()[1].y;
  set("axis", "seconds", "change");
  report.axis = plot().layout.xaxis.title.text;
  report.epochs = document.querySelector("#axis option[value=epoch]").disabled;
  document.getElementById("logarithmic").click();
  report.scale = plot().layout.yaxis.type;
  document.getElementById("logarithmic").click();
  // A rate that stays is in the middle of its picture.
  report.constant = all(".plot")[1].layout.yaxis.range;
  const theme = document.documentElement.dataset.theme;
  document.getElementById("theme").click();
  report.themed = document.documentElement.dataset.theme !== theme;
  report.restarts = plot().layout.shapes.length;
  report.wide = document.documentElement.scrollWidth <= document.documentElement.clientWidth;
""",
    )
    assert told == {
        "titles": ["Loss", "Learning rate"],
        "constant": [0, 0.2],
        "before": ["first", "second"],
        "toggled": ["second"],
        "off": 1,
        "again": 2,
        "smooth": pytest.approx(smoothed([float(f"{value:.6g}") for value in values], 0.5)),
        "behind": ["first"],
        "straight": pytest.approx(falling),
        "axis": "training time, seconds",
        "epochs": True,
        "scale": "log",
        "themed": True,
        "restarts": 0,
        "wide": True,
    }


def test_every_run_has_a_colour_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    names = [f"run{number:02}" for number in range(15)]
    folders = [make_run(tmp_path / name, rows_of([2.0, 1.0], eval_accuracy=0.5)) for name in names]
    told = clicked(
        write_report(folders, tmp_path / "all.html"),
        """
  const plain = (colour) => {
    const one = document.createElement("i");
    one.style.background = colour;
    return one.style.background;
  };
  const pair = (mark) => [mark.dataset.run, mark.style.background];
  const marks = (place) => Object.fromEntries(all(`${place} .mark`).map(pair));
  const curves = (plot) => Object.fromEntries(plot.data.map((one) => [one.name, plain(one.line.color)]));
  Object.assign(report, { light: marks("#runs"), table: marks("#evaluation"), charts: all(".plot").map(curves) });
  all(".run")[3].dispatchEvent(new Event("mouseenter"));
  await until(() => plot().data.some((one) => one.opacity !== undefined));
  report.pointed = plot().data.filter((one) => one.opacity === undefined).map((one) => one.name);
  data.runs.reverse(); show();
  report.reversed = marks("#runs");
  document.getElementById("theme").click();
  report.dark = marks("#runs");
  report.table_dark = marks("#evaluation");
""",
    )
    for theme in ("light", "dark"):
        assert sorted(told[theme]) == names
        assert len(set(told[theme].values())) == len(names)
    assert told["charts"] == [told["light"]] * 2
    assert told["table"] == told["light"]
    assert told["reversed"] == told["light"]
    assert told["table_dark"] == told["dark"]
    assert told["pointed"] == ["run03"]


def evaluated(accuracies: list[float], **more: Any) -> list[dict[str, Any]]:
    return [
        {"step": 10 * place, "epoch": place - 1, "accuracy": one, **more} for place, one in enumerate(accuracies, 1)
    ]


def test_the_table_of_evaluations_marks_the_best_sorts_and_filters(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / "low", evaluated([0.25, 0.5, 0.375], eval_loss_epoch=3.0), config="optim:\n  lr: 0.1\n"),
        make_run(tmp_path / "high", evaluated([0.75, 0.875], eval_loss_epoch=2.0), config="optim:\n  lr: 0.2\n"),
        make_run(tmp_path / "none", rows_of([1.0, 0.5]), config="optim:\n  lr: 0.1\n"),
    ]
    told = clicked(
        write_report(folders, tmp_path / "all.html"),
        """
  const rows = () => all("#evaluation tbody tr").filter((row) => !row.hidden).map((row) => row.dataset.run);
  const button = (metric) => document.querySelector(`.sort[data-metric="${metric}"]`);
  report.heads = all("#evaluation thead th").map(text);
  const inside = (row) => [...row.children].slice(1).map((one) => [...one.children].map(text));
  report.cells = all("#evaluation tbody tr").map(inside);
  report.best = all("#evaluation td.best").map((one) => one.parentElement.dataset.run);
  report.order = [rows()];
  for (const metric of ["accuracy", "accuracy", "accuracy", "eval_loss_epoch"]) {
    button(metric).click();
    report.order.push(rows());
  }
  show();
  report.order.push(rows());
  set("filter", "optim.LR=1e-1 fin", "input");
  report.filtered = [rows(), plot().data.map((one) => one.name), text(document.getElementById("matches"))];
  set("filter", "HI", "input");
  report.named = [rows(), all(".run").filter((one) => !one.hidden).map((one) => one.dataset.run)];
  set("filter", "", "input");
  report.folded = document.querySelector('details[data-key="differences"]').open;
  const folded = document.querySelector('details[data-key="differences"]');
  folded.querySelector("summary").click();
  await until(() => folded.querySelector("table"));
  const trimmed = (row) => [...row.children].map((one) => text(one).trim());
  report.differences = [...folded.querySelectorAll("tbody tr")].map(trimmed);
  set("axis", "epoch", "change");
  report.epochs = plot().data.map((one) => one.x);
""",
    )
    assert told["heads"] == ["run", "eval_loss_epoch ↓", "accuracy ↑"]
    assert told["cells"][0] == [["3", "step 10"], ["0.5", "step 20, last 0.375"]]
    assert told["cells"][2] == [[], []]
    assert told["best"] == ["high", "high"]
    as_given, best_first, best_last = ["low", "high", "none"], ["high", "low", "none"], ["low", "high", "none"]
    assert told["order"] == [as_given, best_first, best_last, as_given, best_first, best_first]
    assert told["filtered"] == [["low", "none"], ["low: eval_loss_epoch", "none: train_loss"], "2 of 3"]
    assert told["named"] == [["high"], ["high"]]
    assert told["folded"] is False
    assert told["differences"] == [["low", "0.1"], ["high", "0.2"], ["none", "0.1"]]
    # The loss of evaluations of two runs, and of training of one that had a single epoch.
    assert told["epochs"] == [[1, 2, 3], [1, 2], [None, None]]


@contextmanager
def followed(folder: Path, clicks: str, meanwhile: Callable[[int], None]) -> Iterator[str]:
    """Serve the runs in a folder on a page that is clicked on, and have something done again and again meanwhile."""

    class Clicked(ReportServer):
        def page(self) -> str:
            return super().page().replace("</body>", BEGIN + clicks + END)

    over = threading.Event()

    def keep_on() -> None:
        count = 0
        while not over.wait(0.05):
            count += 1
            meanwhile(count)

    with Clicked([folder], refresh=0.2) as server:
        threads = [threading.Thread(target=one) for one in (lambda: server.serve_forever(0.01), keep_on)]
        for thread in threads:
            thread.start()
        try:
            yield server.address
        finally:
            over.set()
            server.shutdown()
            for thread in threads:
                thread.join()


def test_a_page_that_follows_a_run_keeps_its_zoom_its_sorting_and_what_was_opened(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folders = [make_run(tmp_path / name, rows_of(noisy(30), eval_accuracy=0.5)) for name in ("first", "second")]
    late: list[Path] = []

    def train_on(count: int) -> None:
        row = {**rows_of([2.0] * (30 + count), eval_accuracy=0.5)[-1]}
        with (folders[0] / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        if count == 3:
            late.append(make_run(tmp_path / "another", rows_of([3.0, 2.0])))

    clicks = """
  const drag = plot().querySelector(".nsewdrag");
  const box = drag.getBoundingClientRect();
  const fire = (target, kind, across) => target.dispatchEvent(new MouseEvent(kind, {
    bubbles: true, cancelable: true, view: window, button: 0, buttons: 1,
    clientX: box.left + across * box.width, clientY: box.top + box.height / 2,
  }));
  const range = () => plot().layout.xaxis.range.map((end) => Math.round(end * 100) / 100);
  report.whole = range();
  fire(drag, "mousemove", 0.2); fire(drag, "mousedown", 0.2);
  fire(document, "mousemove", 0.5); fire(document, "mouseup", 0.5);
  await until(() => range()[1] !== report.whole[1]);
  report.zoomed = range();
  const longest = () => Math.max(...plot().data.map((one) => one.x.length));
  const [points, marks] = [longest(), all("#runs .mark").map((one) => [one.dataset.run, one.style.background])];
  document.querySelector(".sort").click(); document.querySelector(".sort").click();
  document.querySelector('details[data-key="differences"] summary').click();
  await until(() => all(".run").length === 3 && longest() > points);
  report.kept = range();
  report.sorted = all("#evaluation tbody tr").map((row) => row.dataset.run);
  report.open = all("details[open]").map((one) => one.dataset.key);
  const now = Object.fromEntries(all("#runs .mark").map((one) => [one.dataset.run, one.style.background]));
  report.coloured = marks.every(([run, colour]) => now[run] === colour);
"""
    with followed(tmp_path, clicks, train_on) as address:
        told = clicked(address)
    assert told["zoomed"] != told["whole"]
    assert told["kept"] == told["zoomed"]
    assert told["sorted"] == ["second", "first", "another"]
    assert told["open"] == ["differences"]
    assert told["coloured"] is True
    assert "Traceback" not in capfd.readouterr().err


def test_long_names_make_no_page_wider_than_a_phone(tmp_path: Path) -> None:
    long = "a-run-of-many-settings-" * 8
    rows = evaluated([0.5, 0.75, 0.7], **{"a_metric_with_a_long_name_" * 6: 0.5})
    folders = [make_run(tmp_path / f"{long}{place}", [*rows_of([2.0, 1.0]), *rows]) for place in range(2)]
    page = write_report(folders, tmp_path / "all.html")
    # The narrowest window of this browser is wider than a phone; a frame is as narrow as it is made.
    frame = tmp_path / "phone.html"
    text = page.read_text(encoding="utf-8").replace(
        "</body>",
        BEGIN + "report.wide = [document.documentElement.scrollWidth, innerWidth, "
        "all('.run').every((one) => one.scrollWidth <= one.clientWidth)];"
        "parent.postMessage(JSON.stringify(report), '*');" + END,
    )
    page.write_text(text, encoding="utf-8")
    frame.write_text(
        f"<body><iframe src='{page.as_uri()}' style='border:0;width:390px;height:900px'></iframe><script>"
        "addEventListener('message', (event) => { const told = document.createElement('output'); told.id = 'told';"
        "told.textContent = event.data; document.body.append(told); });</script></body>",
        encoding="utf-8",
    )
    shown, console = looked_at(frame, "--dump-dom")
    assert console == []
    found = re.search(r'<output id="told">(.*?)</output>', shown, re.DOTALL)
    assert found is not None, shown[-2000:]
    assert json.loads(unescape(found[1]))["wide"] == [390, 390, True]
