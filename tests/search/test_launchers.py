"""Trials in other processes: tasks travel as JSON, reports come back in order, dead workers are replaced."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed

from tests.forking.starting import popen
from tests.search.support import Judge, Net, letters, noisy, numbers, search_in, vowels, without_clocks
from treadle import nas
from treadle.config import LazyCall
from treadle.errors import ConfigError, MissingDependencyError
from treadle.search import StopSearchError
from treadle.search.launchers import processes as spawning
from treadle.search.launchers.ray import RayWorker
from treadle.search.launchers.wire import Connection, WireError, WorkerServer, connect
from treadle.search.trial.task import Task


def curved(taken: dict[str, str]) -> float:
    """Report a few values, and where it was run."""
    for step in range(3):
        nas.report_intermediate_result({"default": float(step), "pid": os.getpid()})
    return vowels(taken)


def dying(taken: dict[str, str]) -> float:
    """Die of a signal where the first letter is an `a`."""
    if taken["x0"] == "a":
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def failing(taken: dict[str, str]) -> float:
    """Fail where the first letter is an `a`."""
    if taken["x0"] == "a":
        raise ValueError("this letter cannot be judged")
    return 1.0


def stopping(taken: dict[str, str]) -> float:
    """End the search, until something is mended."""
    if "MENDED" not in os.environ:
        raise StopSearchError("this is not the data of before")
    return 1.0


def sleeping(taken: dict[str, str]) -> float:
    """Take too long where the first letter is an `a`."""
    time.sleep(60 if taken["x0"] == "a" else 0)
    return 1.0


def together(taken: dict[str, str]) -> None:
    """Train on two processes, all of which report; the result is the sum of their numbers plus one."""
    torch.distributed.init_process_group("gloo")
    try:
        rank = torch.distributed.get_rank()
        for step in range(3):
            nas.report_intermediate_result({"default": float(step), "rank": rank})
        total = torch.tensor(rank + 1.0)
        torch.distributed.all_reduce(total)
        nas.report_final_result(total)
    finally:
        torch.distributed.destroy_process_group()


def pruned_together(taken: dict[str, str]) -> None:
    """Report nonsense on every process, so that all are told to stop."""
    nas.report_intermediate_result(float("nan"))
    raise AssertionError("it went on")


def first_only(taken: dict[str, str]) -> None:
    """Report from process 0 alone, as many programs do."""
    if os.environ["RANK"] == "0":
        nas.report_intermediate_result(0.5)
        nas.report_final_result(1.0)


def others_more(taken: dict[str, str]) -> None:
    """Report more often from process 1 than from process 0."""
    for _ in range(3 if os.environ["RANK"] == "1" else 1):
        nas.report_intermediate_result(0.5)
    if os.environ["RANK"] == "0":
        nas.report_final_result(2.0)


GRID = nas.Grid(shuffle=False)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have worker processes forked from one that has imported torch; a few tests start them as users do."""
    monkeypatch.setattr(spawning, "subprocess", SimpleNamespace(Popen=popen))


@pytest.mark.slow
def test_a_pool_of_processes_gives_the_results_of_one_process(tmp_path: Path) -> None:
    inline = search_in(tmp_path / "a" / "search", trials=6).run()
    pool = search_in(tmp_path / "b" / "search", trials=6, launcher="processes").run()
    assert without_clocks(pool) == without_clocks(inline)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_reports_come_back_in_order_from_processes_that_are_kept(tmp_path: Path) -> None:
    results = search_in(tmp_path, trainer=curved, trials=6, workers=2, launcher="processes").run()
    assert all(trial["curve"] == [[0, 0.0], [1, 1.0], [2, 2.0]] for trial in results["trials"])
    workers = {report["pid"] for trial in results["trials"] for report in trial["reports"].values()}
    assert 1 <= len(workers) <= 2
    assert os.getpid() not in workers


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_search_of_networks_runs_in_other_processes(tmp_path: Path) -> None:
    options: dict[str, Any] = {"space": LazyCall(Net)(width=3), "strategy": "grid", "keep_weights": True}
    inline = search_in(tmp_path / "a" / "search", trainer=Judge(None, rate=0.2), **options)
    pool = search_in(tmp_path / "b" / "search", trainer=Judge(None, rate=0.2), launcher="processes", **options)
    assert without_clocks(pool.run()) == without_clocks(inline.run())
    one, two = inline.best_network().state_dict(), pool.best_network().state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_worker_that_dies_fails_its_trial_and_is_replaced(tmp_path: Path) -> None:
    results = search_in(tmp_path, letters(1), dying, strategy=GRID, launcher="processes").run()
    assert [trial["state"] for trial in results["trials"]] == ["failed", "complete", "complete", "complete"]
    assert results["trials"][0]["error"]["message"] == "the worker was killed by SIGKILL"


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_an_error_in_another_process_keeps_its_traceback(tmp_path: Path) -> None:
    results = search_in(tmp_path, letters(1), failing, strategy=GRID, launcher="processes", retries=1).run()
    failed = [trial for trial in results["trials"] if trial["state"] == "failed"]
    assert [trial.get("retry_of") for trial in failed] == [None, 0]
    assert failed[0]["error"]["kind"] == "ValueError"
    assert 'raise ValueError("this letter cannot be judged")' in failed[0]["error"]["traceback"]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("launcher", ["processes", "torchrun"])
def test_a_trial_in_another_process_may_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    options: dict[str, Any] = {"launcher": launcher, "trials": 2}
    with pytest.raises(StopSearchError, match=r"^this is not the data of before$"):
        search_in(tmp_path, trainer=stopping, **options).run()
    monkeypatch.setenv("MENDED", "1")
    assert numbers(search_in(tmp_path, trainer=stopping, **options).run()) == [0, 1]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_trial_that_takes_too_long_fails(tmp_path: Path) -> None:
    options: dict[str, Any] = {"strategy": GRID, "launcher": "processes", "trial_timeout": 8.0}
    results = search_in(tmp_path, letters(1, "ab"), sleeping, **options).run()
    assert [trial["state"] for trial in results["trials"]] == ["failed", "complete"]
    assert results["trials"][0]["error"] == {
        "kind": "TimeoutError",
        "message": "the trial took longer than 8 seconds",
        "traceback": "TimeoutError: the trial took longer than 8 seconds",
    }


@pytest.mark.slow
def test_behaviour_9_of_several_processes_of_a_trial_one_report_per_step_arrives(tmp_path: Path) -> None:
    results = search_in(tmp_path, letters(1, "a"), together, launcher="torchrun", processes=2).run()
    (trial,) = results["trials"]
    assert (trial["state"], trial["values"]) == ("complete", {"default": 3.0}), trial.get("error")
    assert trial["curve"] == [[0, 0.0], [1, 1.0], [2, 2.0]]
    assert [report["rank"] for report in trial["reports"].values()] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("trainer", "value"), [(first_only, 1.0), (others_more, 2.0)])
def test_behaviour_9_processes_need_not_report_equally_often(tmp_path: Path, trainer: Any, value: float) -> None:
    results = search_in(tmp_path, letters(1, "a"), trainer, launcher="torchrun", processes=2).run()
    (trial,) = results["trials"]
    assert (trial["values"], trial["curve"]) == ({"default": value}, [[0, 0.5]]), trial.get("error")


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_all_processes_of_a_trial_are_told_to_stop(tmp_path: Path) -> None:
    options: dict[str, Any] = {"launcher": "torchrun", "processes": 2, "nonfinite": "prune"}
    results = search_in(tmp_path, letters(1, "a"), pruned_together, **options).run()
    assert results["trials"][0]["state"] == "pruned", results["trials"][0].get("error")


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_failure_of_any_process_of_a_trial_fails_the_trial(tmp_path: Path) -> None:
    options: dict[str, Any] = {"launcher": "torchrun", "processes": 2, "max_failures": None}
    results = search_in(tmp_path, letters(1, "a"), failing, **options).run()
    assert results["trials"][0]["error"]["kind"] == "ValueError"


def test_a_task_travels_as_json() -> None:
    search = nas.Search(LazyCall(Net)(), LazyCall(Judge)(rate=nas.log_uniform(0.1, 1)), store="memory")
    task = search.task(3, {"inner": "deep", "act": "relu", "trainer.rate": 0.5}, None)
    again = Task.decoded(json.loads(json.dumps(task.encoded())))
    assert (again.number, again.seed) == (task.number, task.seed)
    assert str(again.subject.build()) == str(task.subject.build())
    assert again.encoded() == task.encoded()


def test_what_cannot_travel_is_refused_when_the_search_is_made() -> None:
    with pytest.raises(
        ConfigError, match=r"^the space is a tests.search.support.Net, which cannot be made again in an"
    ):
        nas.Search(Net(), Judge, launcher="processes")
    with pytest.raises(ConfigError, match=r"^the trainer cannot be found again by another process: .*lambda"):
        nas.Search(Net, lambda network: 1.0, launcher="processes")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"launcher": "process"}, r"^launcher='process' is unknown; did you mean 'processes'\?$"),
        ({"launcher": 3}, r"^launcher=3 is unknown; it must be one of \['inline', 'processes', 'torchrun', 'ray'\]$"),
        ({"workers": 2}, r"^workers=2: launcher='inline' runs one trial at a time; use launcher='processes'$"),
        ({"workers": 0}, r"^workers=0 must be 1 or more$"),
        (
            {"trial_timeout": 3},
            r"^trial_timeout= needs trials that can be ended from outside; use launcher='processes'$",
        ),
    ],
)
def test_a_launcher_that_cannot_do_it_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nas.Search(letters(), noisy, **options)


def test_a_torchrun_trial_has_at_least_one_process() -> None:
    with pytest.raises(ConfigError, match=r"^processes=0 must be 1 or more$"):
        nas.Search(letters(), noisy, launcher="torchrun", processes=0, store="memory").run()


def test_without_ray_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"^launcher='ray' needs ray; pip install 'treadle\[ray\]'$"):
        nas.Search(letters(), noisy, launcher="ray", store="memory").run()


def test_without_optuna_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        MissingDependencyError, match=r"^a search over trials needs optuna; pip install 'treadle\[search\]'$"
    ):
        nas.Search(letters(), noisy)


def test_whoever_does_not_know_the_secret_is_not_heard() -> None:
    exchange = WorkerServer()
    try:
        host, port, secret, worker = exchange.address("7").split(":")
        stranger = connect(f"{host}:{port}:{'0' * len(secret)}:{worker}")
        stranger.send({"final": {"default": 1.0}})
        assert exchange.next(0.3) is None
        stranger.close()
        known = connect(exchange.address("7"))
        known.send({"hello": 1})
        said = exchange.next(5)
        assert said is not None
        assert (said.worker, said.message) == ("7", {"hello": 1})
        known.close()
        gone = exchange.next(5)
        assert gone is not None
        assert gone.message == {"gone": True}
    finally:
        exchange.close()


def test_a_line_that_is_cut_says_so() -> None:
    import socket

    one, two = socket.socketpair()
    with pytest.raises(OSError):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
    line = Connection(socket.create_connection(server.getsockname()[:2]))
    with pytest.raises(WireError, match="the other end has gone"):
        line.receive()
    line.close()
    for end in (one, two, server):
        end.close()


def test_there_is_no_search_where_nobody_listens() -> None:
    with pytest.raises(WireError, match=r"^there is no search at 127.0.0.1:1: "):
        connect("127.0.0.1:1:secret:0")


def test_numbers_of_finished_trials_are_those_of_the_store(tmp_path: Path) -> None:
    assert numbers(search_in(tmp_path, trials=3).run()) == [0, 1, 2]


class WorkerCrashedError(Exception):
    """What Ray raises for a worker that was killed."""


class Cluster:
    """As much of Ray as a worker needs: one piece of work, which runs, has ended, or was lost."""

    def __init__(self, state: str) -> None:
        self.state = state

    def wait(self, references: list[str], timeout: float) -> tuple[list[str], list[str]]:
        return ([], references) if self.state == "running" else (references, [])

    def get(self, reference: str) -> None:
        if self.state == "lost":
            raise WorkerCrashedError("The worker died unexpectedly while executing this task.\nCheck its logs.")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("running", None),
        ("ended", "ended by itself"),
        ("lost", "died (WorkerCrashedError: The worker died unexpectedly while executing this task.)"),
    ],
)
def test_a_worker_that_ray_lost_has_not_ended_well(state: str, words: str | None) -> None:
    assert RayWorker(Cluster(state), "work").ended() == words
