"""The benchmark of execution runs, keeps what it finds, and computes its verdicts from that."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import results
from benchmarks.docs import readme
from benchmarks.execution import compare as execution
from benchmarks.execution import gpt2
from benchmarks.execution import graphs as execution_graphs
from benchmarks.execution.fashion_task import Task
from benchmarks.execution.fashion_task import train_by_hand as train_task_by_hand
from benchmarks.execution.report import as_markdown
from benchmarks.execution.session import Findings, Options, alone
from benchmarks.execution.work import MLP, Clock, Material, fused_adamw, train_by_hand
from tests.benchmarks.fake_cuda import put_in_place
from tests.forking.starting import run
from treadle.data.location import data_folder

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture
def findings(tmp_path: Path) -> Findings:
    return Findings("small", Options(CPU, smoke=True, out=tmp_path), budget_s=60, facts="- date: today")


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_section_runs_in_tiny_sizes_without_a_gpu(tmp_path: Path) -> None:
    # In a process of its own: it sets what holds for a whole process.
    command = ["-m", "benchmarks.execution.compare", "--smoke", "--sections", "small,gpt2,fashion,cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = run(*command, "--out", str(tmp_path), cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "errors.txt").exists(), (tmp_path / "errors.txt").read_text()
    for name in ("small", "gpt2", "fashion", "cpu"):
        data = read(tmp_path, name)
        assert all(check["passed"] for check in data["checks"]), data["checks"]
        assert all("not installed" in reason for reason in data["missing"].values()), data["missing"]
        assert "A smoke test" in (tmp_path / f"{name}.md").read_text()
        assert str(tmp_path) not in data["facts"], "the folder is no business of a reader"
    rounds = read(tmp_path, "small")["rounds"]
    assert {work: len(own) for work, own in rounds.items()} == {"MLP": 2, "CNN": 2}
    assert "treadle graph | resident, gathered in the graph" in rounds["CNN"][0]
    assert set(read(tmp_path, "gpt2")["settings"]) == {setting.name for setting in gpt2.settings(gpt2.TINY)}
    assert {run["name"] for run in read(tmp_path, "fashion")["runs"]} >= {"hand-written loop, DataLoader"}
    assert "[small " in done.stdout


# Steps captured by hand -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make_feed",
    [
        execution_graphs.CopyFeed,
        lambda material: execution_graphs.ResidentFeed(material, shuffled=False),
        execution_graphs.HostFeed,
    ],
    ids=["copied in", "resident", "from the host"],
)
def test_a_step_captured_by_hand_ends_where_the_hand_written_loop_does(
    make_feed: Callable[[Material], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch)
    material = Material(replace(MLP, batch_size=4, graph_steps=6), CPU, seed=0)
    job = material.job(material.batches, fused_adamw)
    train_by_hand(job, Clock(CPU), epochs=2)
    feed = make_feed(material)
    before = feed.job.weights()
    assert torch.equal(before, material.job(material.batches, fused_adamw).weights()), "warm-up leaves no trace"
    clock = Clock(CPU)
    execution_graphs.train_captured(feed, clock, epochs=2)
    assert torch.equal(feed.job.weights(), job.weights())
    assert len(clock.seconds) == 2


def test_a_shuffled_resident_epoch_sees_every_sample_once(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    material = Material(replace(MLP, batch_size=4, graph_steps=6), CPU, seed=0)
    feed = execution_graphs.ResidentFeed(material)
    feed.epoch()
    assert feed._permutation.sort().values.tolist() == list(range(24))
    assert feed._permutation.tolist() != list(range(24))
    assert feed._cursor.item() == 24


def test_a_captured_language_model_learns_what_the_plain_loop_does(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    monkeypatch.setattr(nn.Module, "compile", lambda module, **options: None)
    tuned = next(setting for setting in gpt2.settings(gpt2.TINY) if setting.tuned)
    batches = gpt2.make_batches(gpt2.TINY, 2, CPU, seed=0, count=3)
    trained = []
    for captures in (False, True):
        model = gpt2.make_model(gpt2.TINY, CPU, seed=0, tuned=True, fused_head=True)
        gpt2.HandLoop(model, tuned, batches, Clock(CPU), captures=captures).epoch()
        trained.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    torch.testing.assert_close(*trained, rtol=0, atol=1e-6)


def test_the_memory_that_captured_steps_multiply_in_is_not_given_back_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_back: list[str] = []
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: given_back.append("yes"), raising=False)
    with execution_graphs.workspaces_kept():
        torch._C._cuda_clearCublasWorkspaces()
    assert given_back == []
    torch._C._cuda_clearCublasWorkspaces()
    assert given_back == ["yes"]


def test_without_cuda_there_is_no_such_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_cuda_clearCublasWorkspaces", raising=False)
    with execution_graphs.workspaces_kept():
        assert not hasattr(torch._C, "_cuda_clearCublasWorkspaces")
    assert not hasattr(torch._C, "_cuda_clearCublasWorkspaces")


# What is kept -----------------------------------------------------------------------------------------------------


def test_a_failure_is_recorded_and_costs_nothing_else(findings: Findings, tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no such kernel\nand more")

    assert findings.attempt("one", fail) is None
    assert findings.attempt("another", lambda: 3) == 3
    assert read(tmp_path, "small")["missing"] == {"one": "RuntimeError: no such kernel"}
    assert "no such kernel\nand more" in (tmp_path / "errors.txt").read_text()


def test_a_package_that_is_not_there_is_named(findings: Findings) -> None:
    findings.attempt("peer", lambda: __import__("no_such_package"))
    assert findings.data["missing"] == {"peer": "no_such_package not installed"}


def test_what_was_found_is_on_disk_at_once(findings: Findings, tmp_path: Path) -> None:
    findings.check("same weights", 0.0, 0.0)
    findings.check("same loss", float("nan"), 1.0)
    data = read(tmp_path, "small")
    assert [check["passed"] for check in data["checks"]] == [True, False]
    assert not data["complete"]


def test_nothing_begins_that_would_not_be_over_in_time(findings: Findings) -> None:
    assert findings.has_time(50)
    assert not findings.has_time(61)


# The command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sections", "small,big", "--smoke"], r"--sections: \['big'\] are unknown; use some of \['small'"),
        (["--budget-s", "big=3", "--smoke"], r"--budget-s: 'big' is no section; use some of \['small'"),
        (["--budget-s", "soon", "--smoke"], r"--budget-s: could not convert string to float: 'soon'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        execution.parse_arguments(arguments)
    assert re.search(message, capsys.readouterr().err)


def test_folders_are_those_of_where_the_command_was_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data" / "letters").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREADLE_DATA", "data")
    execution.settle_data_folder()
    out = execution.parse_arguments(["--smoke", "--out", "found"]).out
    with alone():
        assert data_folder("letters") == tmp_path / "data" / "letters"
    assert out == tmp_path / "found"


@pytest.mark.parametrize("value", [None, ""])
def test_a_data_folder_that_is_not_named_stays_so(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("TREADLE_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("TREADLE_DATA", value)
    execution.settle_data_folder()
    assert os.environ.get("TREADLE_DATA") == value


def test_sections_that_need_a_gpu_say_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        execution.parse_arguments(["--sections", "small"])
    assert "['small'] need a GPU, and there is none; use --sections cpu, or --smoke" in capsys.readouterr().err
    assert execution.parse_arguments(["--sections", "cpu"]).device == CPU


def small_data() -> dict[str, Any]:
    hand, treadle = "hand-captured graph | ready, on the device", "treadle graph | ready, on the device"
    turn = {"inputs": "ready, on the device", "baseline": None, "bar": None, "limit_us": None}
    return {
        "facts": "- date: today",
        "smoke": False,
        "missing": {"Ignite": "ignite not installed"},
        "checks": [{"name": "same", "value": 0.0, "allowed": 0.0, "passed": True}],
        "turns": {
            "MLP": {
                hand: {**turn, "name": "hand-captured graph"},
                treadle: {**turn, "name": "treadle graph", "baseline": hand, "bar": 1.1, "limit_us": 65.0},
            }
        },
        "rounds": {"MLP": [{hand: 80.0, treadle: 84.0}, {hand: 100.0, treadle: 120.0}, {hand: 80.0, treadle: 86.0}]},
    }


def test_ratios_are_of_the_same_round_and_verdicts_of_their_medians() -> None:
    text = as_markdown("small", small_data())
    # Ratios 1.05, 1.2, 1.075: the median is 1.075, quartiles halfway to the others; times 84, 120, 86.
    assert "| treadle graph | ready, on the device | 86.0 | 85.0-103.0 | 3 | - | 1.075 | 1.062-1.137 |" in text
    assert "- MLP, treadle graph, ready, on the device: 1.075 times its like; bar 1.1: met" in text
    assert "- MLP, treadle graph, ready, on the device: 86.0 µs; bar 65 µs: MISSED" in text
    assert "- missing: Ignite (ignite not installed)" in text
    assert "Parity: 1 of 1 comparisons agree." in text


def test_the_share_of_arithmetic_is_that_of_the_formula() -> None:
    size = gpt2.Size()
    # 6 x 124.4 million + 12 x 12 x 768 x 1024
    assert size.flops_per_token() == 859_646_208
    seconds = [9.0, 1.0, 1.0]
    found = {"batch": 64, "steps": 10, "tokens": 576_000, "hand_s": seconds, "treadle_s": seconds}
    data = {"facts": "", "smoke": False, "missing": {}, "checks": [], "settings": {"tuned: all": found}}
    text = as_markdown("gpt2", {**data, "peak": gpt2.PEAK, "flops_per_token": size.flops_per_token()})
    assert "| tuned: all | treadle | 64 | 100.00 | 100.00-100.00 | 576.0k | 0.501 | 1.0000 | 1.0000-1.0000 |" in text
    assert "- tuned: MFU 0.501; bar 0.49: met" in text


def test_results_are_written_from_what_was_brought_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "RESULTS.md"
    monkeypatch.setattr(execution, "write_section", lambda name, text: results.write_section(name, text, target))
    page = tmp_path / "README.md"
    page.write_text("<!-- begin: execution -->\n<!-- end: execution -->\n")
    monkeypatch.setattr(execution, "fill", lambda name, text: readme.fill(name, text, page))
    source = tmp_path / "small.json"
    source.write_text(json.dumps(small_data()))
    execution.main(["--write-results", str(source)])
    assert "<!-- begin: execution-small -->\n## Execution: small models on a GPU" in target.read_text()
    assert (
        "| contender | MLP, µs |\n|---|--:|\n| hand-captured graph | 80 |\n| treadle graph | 86 |" in page.read_text()
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [("small", {"smoke": True}, "is of a smoke test"), ("other", {}, r"are called one of \['small.json'")],
)
def test_results_that_mean_nothing_are_not_written(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source = tmp_path / f"{name}.json"
    source.write_text(json.dumps({**small_data(), **change}))
    with pytest.raises(SystemExit, match=message):
        execution.main(["--write-results", str(source)])


def test_the_loop_by_hand_stops_when_it_is_good_enough() -> None:
    torch.manual_seed(0)
    labels = torch.arange(40) % 2
    images = torch.where(labels.bool(), 1.0, -1.0).view(-1, 1).expand(-1, 3).contiguous()
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = (images, labels)
    task = Task(model, optimizer, data, data, 10, target=1.0, most_epochs=9, seed=0, device=CPU)
    assert train_task_by_hand(task, workers=0) == [1.0]
    unreachable = replace(task, target=2.0, most_epochs=3)
    assert train_task_by_hand(unreachable, workers=0) == [1.0, 1.0, 1.0]
