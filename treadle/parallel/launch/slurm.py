"""Where SLURM has put this process: read from its environment, without asking its commands.

Nothing here needs torch, so that the command line can look at once.
"""

import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from itertools import product

from treadle.errors import ConfigError

FIRST_PORT, PORTS = 15_000, 15_000
"""Ports that processes meet at: below those that systems give to whoever asks for any."""


@dataclass(frozen=True)
class SlurmTask:
    """One of the processes that `srun` started.

    Attributes:
        rank: Its number.
        size: How many there are.
        local_rank: Its number on its machine.
        local_size: How many there are on its machine.
        machine: The number of its machine.
        machines: How many machines there are.
        host: The first machine, where processes meet.
        port: The port they meet at; the same for all of a job, and another for most other jobs.
        name: A name that all of them have in common, and no other job or later start of this one.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    machine: int
    machines: int
    host: str
    port: int
    name: str


def read_slurm_task(environment: Mapping[str, str] = os.environ) -> SlurmTask | None:
    """Return which task of a job step this process is; None if it is none.

    A shell in an allocation is none, nor is a batch script, though both have most of the variables: only what `srun`
    starts knows the number of tasks of its step.

    Raises:
        ConfigError: A variable is missing, or none that SLURM would set.
    """
    if "SLURM_STEP_NUM_TASKS" not in environment or "SLURM_PROCID" not in environment:
        return None
    hosts = expand_hosts(_text(environment, "SLURM_STEP_NODELIST"))
    counts = expand_counts(_text(environment, "SLURM_STEP_TASKS_PER_NODE"))
    machine, job = _number(environment, "SLURM_NODEID"), _number(environment, "SLURM_JOB_ID")
    if not 0 <= machine < len(counts):
        raise ConfigError(
            f"SLURM_NODEID={machine}, but SLURM_STEP_TASKS_PER_NODE={environment['SLURM_STEP_TASKS_PER_NODE']} has "
            f"{len(counts)} machines; is this process in the environment of another step?"
        )
    step, start = environment.get("SLURM_STEP_ID", "0"), environment.get("SLURM_RESTART_COUNT", "0")
    return SlurmTask(
        rank=_number(environment, "SLURM_PROCID"),
        size=_number(environment, "SLURM_STEP_NUM_TASKS"),
        local_rank=_number(environment, "SLURM_LOCALID"),
        local_size=counts[machine],
        machine=machine,
        machines=len(counts),
        host=hosts[0],
        # Seven ports a job: steps that run at the same time have their own, and the next job begins behind them.
        port=FIRST_PORT + (job * 7 + (int(step) if step.isdecimal() else 0)) % PORTS,
        name=f"slurm_{job}_{step}_{start}",
    )


def use_slurm_task(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let torch find the processes of a job step as if torchrun had started them; what is set already stays.

    One process alone, or one that a launcher has numbered, is left as it is.
    """
    if "RANK" in environment:
        return
    task = read_slurm_task(environment)
    if task is None or task.size == 1:
        return
    place = {
        "RANK": task.rank,
        "WORLD_SIZE": task.size,
        "LOCAL_RANK": task.local_rank,
        "LOCAL_WORLD_SIZE": task.local_size,
        "GROUP_RANK": task.machine,
        "MASTER_ADDR": task.host,
        "MASTER_PORT": task.port,
    }
    for name, value in place.items():
        environment.setdefault(name, str(value))


def expand_hosts(text: str) -> list[str]:
    """Return the names in a list of machines as SLURM writes it, in order.

    >>> expand_hosts("login1,node[08-10,12]")
    ['login1', 'node08', 'node09', 'node10', 'node12']
    >>> expand_hosts("rack[1-2]n[1,3]")
    ['rack1n1', 'rack1n3', 'rack2n1', 'rack2n3']

    Raises:
        ConfigError: It is no such list.
    """
    # A comma within brackets belongs to a range.
    parts = re.findall(r"(?:\[[^\[\]]*\]|[^,\[\]])+", text)
    if not parts or ",".join(parts) != text:
        raise ConfigError(f"{text!r} is no list of machines, such as 'node[01-03],login1'")
    return [name for part in parts for name in _expand_name(part, text)]


def _expand_name(part: str, text: str) -> Iterator[str]:
    pieces = re.split(r"\[([^\]]*)\]", part)
    # Every second piece was within brackets.
    choices = [list(_expand_range(piece, text)) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    return ("".join(chosen) for chosen in product(*choices))


def _expand_range(piece: str, text: str) -> Iterator[str]:
    for part in piece.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise ConfigError(f"{part!r} in {text!r} is no range of machines, such as '01-03'")
        first, last = found[1], found[2] or found[1]
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def expand_counts(text: str) -> list[int]:
    """Return the number of tasks on each machine, as SLURM writes them.

    >>> expand_counts("4(x2),1")
    [4, 4, 1]

    Raises:
        ConfigError: It is no such list.
    """
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"([1-9]\d*)(?:\(x([1-9]\d*)\))?", part)
        if found is None:
            raise ConfigError(f"{part!r} in {text!r} is no number of tasks, such as '4' or '4(x2)'")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise ConfigError(
            f"srun started this process, but {name} is not set; start it by srun with its environment, or unset "
            "SLURM_STEP_NUM_TASKS to run it alone"
        )
    return value


def _number(environment: Mapping[str, str], name: str) -> int:
    text = _text(environment, name)
    if not text.isdecimal():
        raise ConfigError(f"{name}={text!r} must be a whole number, as SLURM sets it")
    return int(text)
