"""On how many processes a command runs, from its options and from where it was started."""

import json
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from treadle.cli import worker
from treadle.cli.group import Group
from treadle.cli.launch import Launch, parse_launch
from treadle.leaving import PreemptedExit


def parse(
    nproc: str | None = None,
    nnodes: str = "1",
    rank: int | None = None,
    endpoint: str = "",
    restarts: int | None = None,
) -> Launch:
    return parse_launch(nproc, nnodes, rank, endpoint, restarts)


def test_one_process_is_this_one() -> None:
    assert not parse().is_needed
    assert not parse("1").is_needed


def test_more_processes_machines_or_restarts_need_a_launcher() -> None:
    assert parse("2").is_needed
    assert parse("1", restarts=0).is_needed
    assert parse("1", nnodes="2", endpoint="host:1").is_needed


def test_machines_are_a_number_or_a_range() -> None:
    found = parse("2", nnodes="2:4", endpoint="host:1", rank=1)
    assert (found.least_machines, found.most_machines, found.machine) == (2, 4, 1)
    assert parse("2", nnodes="3", endpoint="host:1").least_machines == 3


def test_one_of_several_processes_starts_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert not parse(restarts=1).is_needed
    with pytest.raises(typer.BadParameter, match="--nproc 2, but this process is already one of 4; leave it out there"):
        parse("2")


def test_one_process_on_each_gpu_needs_a_gpu() -> None:
    if torch.cuda.is_available():
        assert parse("gpu").processes == torch.cuda.device_count()
    else:
        with pytest.raises(typer.BadParameter, match="--nproc gpu: this machine has no CUDA device; give a number"):
            parse("gpu")


def test_a_process_tells_its_launcher_how_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not worker.report(worker.FAILED, "nobody hears it")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv(worker.LAUNCHER, f"{os.getppid()}:{tmp_path}")
        assert worker.report(worker.REFUSED, f"from {rank}")
    assert [(told.rank, told.state, told.message) for told in worker.reports(tmp_path)] == [
        (0, "refused", "from 0"),
        (1, "refused", "from 1"),
    ]
    assert json.loads((tmp_path / "1.json").read_text())["rank"] == 1


def test_a_signal_outside_of_training_leaves_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(PreemptedExit, match="asked to leave while nothing was under way"), worker.ready():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_is_passed_on_to_processes_that_run_and_to_no_number_of_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The agent and its context want processes to start; here two were started already.
    group, context = object.__new__(Group), object.__new__(SubprocessContext)
    with subprocess.Popen(["sleep", "600"]) as running, subprocess.Popen(["true"]) as ended:
        ended.wait()
        handlers: Any = {rank: SimpleNamespace(proc=process) for rank, process in enumerate((running, ended))}
        context.subprocess_handlers = handlers
        group._pcontext = context
        signalled = []
        monkeypatch.setattr(os, "kill", lambda process, number: signalled.append((process, number)))
        group._pass_on(signal.SIGTERM)
        monkeypatch.undo()
        running.kill()
    assert signalled == [(running.pid, signal.SIGTERM)]
