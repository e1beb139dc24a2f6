"""The text of a batch script for SLURM."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.errors import ConfigError
from treadle.leaving import EXIT_CODE

TIME = r"(\d+-)?\d+(:\d\d){0,2}"


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """What a job is to do, and what it asks for.

    Attributes:
        name: Its name.
        command: The command on each machine, without what says how many processes there are.
        changes: The changes to the config, which come last.
        nodes: Machines.
        processes: Processes on each of them.
        gpus: GPUs of each machine; None asks for none.
        cpus: Cores of each machine; None leaves it to SLURM.
        memory: Memory of each machine.
        time: The longest time of one start.
        save_before: Seconds before the end of that time at which the run is asked to leave.
        partition: The partition.
        account: Whom it is charged to.
        max_restarts: How often dead processes are started again.
        further: Further options of sbatch.
        setup: Lines that are run first.
        folder: Where the job runs.
    """

    name: str
    command: Sequence[str]
    changes: Sequence[str]
    nodes: int
    processes: int
    gpus: int | None
    cpus: int | None
    memory: str | None
    time: str | None
    save_before: int
    partition: str | None
    account: str | None
    max_restarts: int | None
    further: Sequence[str]
    setup: Sequence[str]
    folder: Path

    def __post_init__(self) -> None:
        for name in ("nodes", "processes", "gpus", "cpus", "save_before"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {value} must be a number from 1 up")
        if self.time is not None and not re.fullmatch(TIME, self.time):
            raise ConfigError(f"--time {self.time!r} is no time of SLURM's; write 90 (minutes), 24:00:00 or 2-00:00:00")
        for option in self.further:
            if not re.match(r"--?[a-zA-Z]", option):
                raise ConfigError(f"--sbatch {option!r} is no option of sbatch; write it whole, such as --qos=long")
        for text in (self.name, self.memory, self.partition, self.account, *self.further, *self.setup):
            if text is not None and "\n" in text:
                raise ConfigError(f"{text!r} has a line break, which a line of a batch script cannot hold")


def batch_script(job: BatchJob) -> str:
    """Return the script of a job: started again by whomever, it goes on with the run."""
    return "\n".join(["#!/bin/bash", *_options(job), "", *_comment(), *_body(job)]) + "\n"


def _options(job: BatchJob) -> Iterator[str]:
    # One command on each machine starts the processes there, and starts them again when one dies.
    given: dict[str, object] = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": job.gpus,
        "cpus-per-task": job.cpus,
        "mem": job.memory,
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
        "chdir": job.folder,
        "output": f"{job.name}-%j.out",
        "open-mode": "append",
        "signal": f"USR1@{job.save_before}",
    }
    for name, value in given.items():
        if value is not None:
            yield f"#SBATCH --{name}={_word(str(value))}"
    yield "#SBATCH --requeue"
    yield from (f"#SBATCH {option}" for option in job.further)


def _word(text: str) -> str:
    """Return a value as a line of options takes it: in quotes if it has blanks."""
    return f'"{text}"' if re.search(r"\s", text) else text


def _comment() -> list[str]:
    return [
        "# Written by `treadle slurm`. Before its time is over, the run is asked to leave: it saves itself, ends with",
        f"# status {EXIT_CODE}, and the job is queued again. The same command then goes on where it was, bit for bit.",
        "# Submitted again by hand after a failure, it goes on from the last checkpoint.",
        "",
    ]


def _body(job: BatchJob) -> Iterator[str]:
    yield from job.setup
    if job.cpus is not None:
        # A step does not inherit it from the job.
        yield 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"'
    options = ["--nproc", str(job.processes)]
    if job.max_restarts is not None:
        options += ["--max-restarts", str(job.max_restarts)]
    command = shlex.join([*job.command, *options, *(["--", *job.changes] if job.changes else [])])
    yield "# Machines that leave in good order do so one after the other: none is killed because another has left."
    yield "status=0"
    yield f"srun --kill-on-bad-exit=0 --wait=600 {command} || status=$?"
    yield f'if [ "$status" -eq {EXIT_CODE} ]; then'
    yield '    scontrol requeue "$SLURM_JOB_ID"'
    yield "fi"
    yield 'exit "$status"'
