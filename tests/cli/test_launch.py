"""On how many processes a command runs, from its options and from where it was started."""

import json
import os
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from treadle.cli._launch import Launch, parse_launch, run_group
from treadle.cli._options import LaunchOptions
from treadle.config import get_config
from treadle.errors import MissingDependencyError
from treadle.parallel.launch import worker
from treadle.parallel.launch.torchrun import Group
from treadle.runs.preemption import PreemptedExit


def parse(
    nproc: str | None = None,
    nnodes: str = "1",
    rank: int | None = None,
    endpoint: str = "",
    restarts: int | None = None,
    **others: Any,
) -> Launch:
    return parse_launch(LaunchOptions(nproc, nnodes, rank, endpoint, max_restarts=restarts, **others))


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


def test_where_machines_meet_has_two_spellings() -> None:
    found = parse("2", nnodes="2", master_addr="node0", master_port=29500, rdzv_id="mine")
    assert (found.endpoint, found.name) == ("node0:29500", "mine")
    assert parse("2", nnodes="2", endpoint="node0:29500", rdzv_id="mine") == found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nnodes": "2"}, "--nnodes 2 needs --rdzv-endpoint HOST:PORT, where the machines meet"),
        ({"rank": 0}, "--node-rank needs --rdzv-endpoint HOST:PORT, where the machines meet"),
        ({"nnodes": "2", "endpoint": "a:1", "rank": 2}, "--node-rank 2 must be from 0 to 1, for --nnodes 2"),
        ({"nnodes": "2", "endpoint": "node0"}, "--rdzv-endpoint 'node0' must be HOST:PORT, such as node0:29500"),
        ({"nnodes": "2", "master_addr": "node0"}, "--master-addr HOST and --master-port PORT go together; give both"),
        (
            {"nnodes": "2", "master_addr": "node0", "master_port": 1, "endpoint": "a:1"},
            "--rdzv-endpoint a:1 and --master-addr or --master-port say the same; give one of them",
        ),
        (
            {"nnodes": "2", "endpoint": "a:1", "launcher": "ray"},
            "--launch ray places the processes itself; leave --nnodes, --node-rank and where machines meet out",
        ),
    ],
)
def test_options_that_cannot_be_meant_together_are_refused(options: Any, message: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        parse("2", **options)
    assert str(caught.value).startswith(message)


def in_a_step(monkeypatch: pytest.MonkeyPatch, *, tasks: str) -> None:
    """Make this process the second task of a step on two machines."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"):
        # Put back afterwards, whatever is set.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    made = {
        "JOB_ID": "10",
        "STEP_ID": "0",
        "STEP_NUM_TASKS": str(sum(int(count) for count in tasks.split(","))),
        "STEP_TASKS_PER_NODE": tasks,
        "STEP_NODELIST": "gpu[1-2]",
        "PROCID": "1",
        "LOCALID": "0",
        "NODEID": "1",
    }
    for name, value in made.items():
        monkeypatch.setenv(f"SLURM_{name}", value)


def test_a_task_on_each_machine_of_a_job_starts_the_processes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_step(monkeypatch, tasks="1,1")
    assert parse("8") == Launch(
        8, 2, 2, endpoint="gpu1:15070", name="slurm_10_0_0", is_rendezvous_host=False, restarts=None
    )
    assert parse("8").is_needed
    assert parse("8", nnodes="2", endpoint="other:1").endpoint == "other:1", "what is given wins"


def test_a_task_for_each_process_of_a_job_starts_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_step(monkeypatch, tasks="4,4")
    assert not parse().is_needed
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("1", "8")


def test_a_task_for_each_process_that_should_start_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_step(monkeypatch, tasks="4,4")
    with pytest.raises(typer.BadParameter) as caught:
        parse("4")
    assert str(caught.value) == (
        "--nproc 4 has this command start the processes, but srun started 8 commands on 2 machines; start one on each "
        "(--ntasks-per-node=1), or leave the option out"
    )


def test_a_cluster_of_ray_starts_even_one_process() -> None:
    assert parse("4", launcher="ray") == Launch(4, launcher="ray")
    assert parse(launcher="ray").is_needed


@pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed")
def test_ray_that_is_not_installed_is_said_with_the_extra(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match=r"--launch ray needs ray; pip install 'treadle\[ray\]'"):
        run_group("train", [], Launch(launcher="ray"), "", run=tmp_path, dist=get_config("common/train.py").train.dist)


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
