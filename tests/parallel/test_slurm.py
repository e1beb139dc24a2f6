"""What SLURM says of a process, in environments that are made up after real ones."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.forking.starting import start
from treadle.errors import ConfigError
from treadle.parallel.launch.slurm import SlurmTask, expand_counts, expand_hosts, read_slurm_task, use_slurm_task

BATCH = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "gpu[03-04]",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "6",
    "SLURM_TASKS_PER_NODE": "4,2",
}
"""What a batch script finds: it is one process, whatever was allocated."""


def environment(rank: int = 5, **changes: str | None) -> dict[str, str]:
    """Return what a task of a step finds: four of them on one machine, two on another."""
    made: dict[str, str | None] = {
        **BATCH,
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "6",
        "SLURM_STEP_TASKS_PER_NODE": "4,2",
        "SLURM_STEP_NODELIST": "gpu[03-04]",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % 4),
        "SLURM_NODEID": str(rank // 4),
        **changes,
    }
    return {name: value for name, value in made.items() if value is not None}


def test_a_task_finds_its_place_and_the_first_machine() -> None:
    assert read_slurm_task(environment()) == SlurmTask(
        rank=5,
        size=6,
        local_rank=1,
        local_size=2,
        machine=1,
        machines=2,
        host="gpu03",
        port=15_000 + 4711 * 7 % 15_000,
        name="slurm_4711_0_0",
    )


def test_all_tasks_of_a_job_meet_at_one_place_and_those_of_the_next_at_another() -> None:
    tasks = [read_slurm_task(environment(rank)) for rank in range(6)]
    assert len({(task.host, task.port, task.name) for task in tasks if task is not None}) == 1
    other = read_slurm_task(environment(SLURM_JOB_ID="4712"))
    assert other is not None
    assert tasks[0] is not None
    assert other.port != tasks[0].port


def test_a_job_that_is_queued_again_has_another_name() -> None:
    again = read_slurm_task(environment(SLURM_RESTART_COUNT="2"))
    assert again is not None
    assert again.name == "slurm_4711_0_2"


def test_torch_finds_its_variables_and_those_that_are_set_stay() -> None:
    made = environment(MASTER_PORT="29500")
    use_slurm_task(made)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [made[name] for name in names] == ["5", "6", "1", "2", "1", "gpu03", "29500"]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param({}, id="no job"),
        pytest.param(BATCH, id="a batch script or a shell"),
        pytest.param(environment(0, SLURM_STEP_NUM_TASKS="1", SLURM_STEP_TASKS_PER_NODE="1"), id="a step of one"),
        pytest.param(environment(RANK="0", WORLD_SIZE="2"), id="torchrun within a step"),
    ],
)
def test_a_process_that_is_alone_or_has_a_launcher_is_left_as_it_is(made: dict[str, str]) -> None:
    before = dict(made)
    use_slurm_task(made)
    assert made == before


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node7", ["node7"]),
        ("a,b", ["a", "b"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("gpu-a[01,04-05],gpu-b2", ["gpu-a01", "gpu-a04", "gpu-a05", "gpu-b2"]),
        ("r[1-2]c[3-4].site", ["r1c3.site", "r1c4.site", "r2c3.site", "r2c4.site"]),
    ],
)
def test_lists_of_machines_are_expanded_as_slurm_does(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    ("expand", "text", "message"),
    [
        (expand_hosts, "node[1-2", "'node[1-2' is no list of machines, such as 'node[01-03],login1'"),
        (expand_hosts, "node[3-1]", "'3-1' in 'node[3-1]' is no range of machines, such as '01-03'"),
        (expand_hosts, "node[a]", "'a' in 'node[a]' is no range of machines, such as '01-03'"),
        (expand_counts, "4(x0)", "'4(x0)' in '4(x0)' is no number of tasks, such as '4' or '4(x2)'"),
    ],
)
def test_a_list_that_slurm_does_not_write_is_refused(expand: Any, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expand(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_STEP_NODELIST": None}, "srun started this process, but SLURM_STEP_NODELIST is not set; start it by"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID='x' must be a whole number, as SLURM sets it"),
        ({"SLURM_NODEID": "2"}, "SLURM_NODEID=2, but SLURM_STEP_TASKS_PER_NODE=4,2 has 2 machines"),
    ],
)
def test_an_environment_that_is_not_whole_is_refused(changes: dict[str, str | None], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_slurm_task(environment(**changes))
    assert str(caught.value).startswith(message)


PROGRAM = """
from treadle.parallel import Processes
processes = Processes("cpu")
print(processes.rank, processes.size, processes.local_rank, processes.reduce([processes.rank + 1.0]))
"""


@pytest.mark.slow
def test_processes_of_a_step_join_without_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    changes = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
    }
    printed = [tmp_path / f"{rank}.txt" for rank in range(2)]
    started = []
    for rank, path in enumerate(printed):
        own = {**os.environ, **environment(rank, **changes)}
        with path.open("w") as output, path.with_suffix(".errors").open("w") as errors:
            started.append(start("-c", PROGRAM, stdout=output, stderr=errors, env=own))
    assert [process.wait(240) for process in started] == [0, 0]
    assert [path.read_text() for path in printed] == ["0 2 0 [3.0]\n", "1 2 1 [3.0]\n"]
