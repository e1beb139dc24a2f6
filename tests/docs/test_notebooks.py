"""In a notebook: progress below the cell without widgets, and results as tables."""

import builtins
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle.callbacks import ProgressBarCallback
from treadle.callbacks.epoch_table import EpochTable
from treadle.callbacks.progress_display import Activity, NotebookDisplay, make_display
from treadle.console.lines import number
from treadle.recsys.evaluation import EvaluationResult
from treadle.recsys.serve.recommender import Recommendations
from treadle.recsys.trainers.results import Metrics
from treadle.recsys.tune.search import SearchResult, Trial
from treadle.search.results import SearchResults
from treadle.trainer import Trainer


class Cell:
    """The output of a cell: what was displayed, and what each display became."""

    def __init__(self) -> None:
        self.outputs: list[list[str]] = []

    def display(self, html: str, *, display_id: bool) -> "Handle":
        assert display_id
        self.outputs.append([html])
        return Handle(self.outputs[-1])

    def last(self) -> list[str]:
        return [versions[-1] for versions in self.outputs]


class Handle:
    def __init__(self, versions: list[str]) -> None:
        self.versions = versions

    def update(self, html: str) -> None:
        self.versions.append(html)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """A kernel with the parts of IPython that are used."""
    shown = Cell()

    class ZMQInteractiveShell:
        """What rich knows a notebook by."""

    display: Any = ModuleType("IPython.display")
    display.HTML, display.display = str, shown.display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    return shown


def activity(title: str, done: list[int], total: int | None = 10) -> Activity:
    return Activity(title, lambda: done[0], lambda: total, notes={"loss": "<0.5"})


def test_a_notebook_has_a_display_of_its_own(cell: Cell) -> None:
    assert isinstance(make_display(print), NotebookDisplay)


def test_a_bar_moves_in_its_place_and_stays_when_it_is_over(cell: Cell) -> None:
    done = [0]
    display = make_display(print)
    epoch = activity("Epoch 1/2", done)
    display.begin(epoch)
    done[0] = 4
    display.draw(1.0)
    done[0] = 10
    display.finish(epoch)
    display.begin(activity("Epoch 2/2", [0]))
    display.close()
    assert len(cell.outputs) == 2
    bar = "<div>Epoch 1/2 <progress{}></progress> <code>{}  loss &lt;0.5</code></div>"
    assert cell.outputs[0] == [bar.format(f' value="{place}" max="10"', f"{place}/10") for place in (0, 4, 10)]


def test_an_evaluation_in_an_epoch_is_a_second_bar_that_goes_when_it_is_over(cell: Cell) -> None:
    display = make_display(print)
    epoch, evaluation = activity("Epoch 1/1", [3]), activity("Evaluating", [1])
    display.begin(epoch)
    display.begin(evaluation)
    display.draw(1.0)
    assert cell.last()[0].count("<progress") == 2
    display.finish(evaluation)
    assert cell.last()[0].count("<progress") == 1
    display.finish(epoch)
    assert len(cell.outputs) == 1


def test_a_bar_of_unknown_length_moves_until_it_is_over(cell: Cell) -> None:
    display = make_display(print)
    endless = activity("Epoch 1", [7], total=None)
    display.begin(endless)
    assert "<progress></progress> <code>7  loss" in cell.last()[0]
    display.finish(endless)
    assert '<progress value="1" max="1"></progress> <code>7  loss' in cell.last()[0]


def test_a_run_shows_its_epochs_below_the_cell(cell: Cell) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=(ProgressBarCallback,), device="cpu", seed=0)
    data = TensorDataset(torch.ones(16, 2), torch.ones(16, 1))
    trainer.train(data, num_epochs=2, eval_dataset=data, per_device_batch_size=4)
    titles = [text.removeprefix("<div>").partition(" <progress")[0] for text in cell.last()]
    assert titles == ["epoch 1/2", "evaluation", "epoch 2/2", "evaluation"]
    assert all('value="4" max="4"' in text for text in cell.last())


def test_a_run_that_is_told_in_words_shows_a_table_of_its_epochs_and_a_chart(
    cell: Cell, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, nn.MSELoss(), optimizer, device="cpu", seed=0, run_dir=tmp_path)
    data = TensorDataset(torch.ones(16, 2), torch.ones(16, 1))
    result = trainer.train(data, num_epochs=3, eval_dataset=data, per_device_batch_size=4)
    (last,) = cell.last()
    assert "<progress" not in last
    assert last.startswith("<svg ")
    assert last.count("<polyline") == 2
    rows = rows_of(last)
    assert rows[0] == ["", "time", "train", "eval"]
    assert [row[0] for row in rows[1:]] == [f"epoch {n}/3 *best" for n in (1, 2, 3)]
    assert [row[2] for row in rows[1:]] == [number(value) for value in result.history["train_loss_epoch"]]
    # The rows stand in the table and in the log of the run, and are not printed as well.
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()][-1].startswith("finished")
    assert "epoch 3/3" in (tmp_path / "log.txt").read_text()


def test_a_training_of_recommenders_fills_the_same_table(
    cell: Cell, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from tests.recsys.trainer.runs import make

    make(tmp_path, "BPR", epochs=3).fit(show_progress=True, verbose=True)
    rows = rows_of(cell.last()[0])
    assert rows[0][:3] == ["", "time", "train"]
    assert [row[0].removesuffix(" *best") for row in rows[1:]] == [f"epoch {n}/3" for n in (1, 2, 3)]
    assert "<polyline" in cell.last()[0]
    assert "epoch 1/3" not in capsys.readouterr().out


def test_the_engine_shows_its_lines_as_rows_of_a_table(
    cell: Cell, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.engine.parts import make_config
    from treadle.engine import DefaultTrainer

    with caplog.at_level(logging.INFO, "treadle"):
        for name in ("first", "second"):
            DefaultTrainer(make_config(tmp_path / name, log_period=2)).train()
    # Each run has a table of its own.
    first, second = cell.last()
    for shown in (first, second):
        rows = rows_of(shown)
        assert rows[0][:3] == ["", "time", "train"]
        assert [row[0] for row in rows[1:]] == [f"step {step}/10" for step in (2, 4, 6, 8, 10)]
        assert "<polyline" in shown
    told = [record for record in caplog.records if record.getMessage().startswith("step 2/10")]
    assert len(told) == 2
    assert all(getattr(record, "is_detail", False) for record in told)


def test_a_table_of_many_epochs_shows_the_last_ones_and_draws_all() -> None:
    table = EpochTable()
    for epoch in range(1, 41):
        table.add_row(f"epoch {epoch}/40", "1s", {"train_loss_epoch": 1 / epoch, "<b>": "x<y"}, best=epoch == 7)
    html = table.html()
    assert "<p>10 earlier rows are not shown</p>" in html
    assert len(rows_of(html)) == 31
    assert rows_of(html)[0] == ["", "time", "train", "&lt;b&gt;"]
    assert html.count(",") >= 40
    assert EpochTable().html() == ""


def rows_of(html: str) -> list[list[str]]:
    """Return the cells of a table, row by row, its head first."""
    rows = html.partition("<table>")[2].removesuffix("</table>").split("<tr>")[1:]
    return [[part.partition("</t")[0] for part in row.replace("<th>", "<td>").split("<td>")[1:]] for row in rows]


def test_metrics_of_a_recommender_are_a_table() -> None:
    assert rows_of(Metrics.of({"ndcg@10": 0.12345}, 4)._repr_html_()) == [["metric", "value"], ["ndcg@10", "0.1235"]]


def test_an_evaluation_is_a_table_with_its_groups() -> None:
    result = EvaluationResult(
        {"ndcg@10": 0.5}, users=8, groups={"activity": {"0-4": {"ndcg@10": 0.25}}}, group_users={"activity": {"0-4": 3}}
    )
    assert rows_of(result._repr_html_()) == [
        ["users in", "users", "ndcg@10"],
        ["all", "8", "0.5"],
        ["activity 0-4", "3", "0.25"],
    ]


def test_recommendations_are_a_table_that_ends_after_twenty_rows() -> None:
    users = [f"u{number}" for number in range(22)]
    items = np.array([["a<b", "c"]] * 22)
    lists = Recommendations("user_id", users, items, np.zeros((22, 2)), np.arange(22) == 1)
    html = lists._repr_html_()
    assert html.startswith("<p>the first 20; there are 2 more</p>")
    rows = rows_of(html)
    assert rows[:3] == [["user_id", "1", "2"], ["u0", "a&lt;b", "c"], ["u1 (popular)", "a&lt;b", "c"]]
    assert len(rows) == 21


@pytest.mark.parametrize(("bigger", "order"), [(True, ["2", "0", "1"]), (False, ["0", "2", "1"])])
def test_a_search_over_settings_is_a_table_with_the_best_first(bigger: bool, order: list[str]) -> None:
    trials = [
        Trial(0, {"lr": 0.1}, 0.25, "complete", {}, None),
        Trial(1, {"size": 8}, None, "failed", {}, None),
        Trial(2, {"lr": 0.2, "size": 16}, 0.5, "complete", {}, None),
    ]
    rows = rows_of(SearchResult(trials, trials[2], bigger)._repr_html_())
    assert [row[0] for row in rows[1:]] == order
    assert rows[-1] == ["1", "failed", "", "", "8"]


def test_a_search_over_trials_is_a_table_with_the_best_first_and_plain_data() -> None:
    trials = [
        {"number": 0, "state": "failed", "values": None, "parameters": {"x": 1}},
        {"number": 1, "state": "complete", "values": {"default": 0.5}, "parameters": {"x": 2}},
    ]
    data = {"name": "s", "strategy": "tpe", "objectives": {"default": "maximize"}, "trials": trials, "pareto": [1]}
    results = SearchResults(data)
    assert results == data
    html = results._repr_html_()
    assert html.startswith("<p>s: 2 trials by tpe</p>")
    assert rows_of(html) == [
        ["trial", "state", "default", "x"],
        ["1", "complete", "0.5", "2"],
        ["0", "failed", "", "1"],
    ]
