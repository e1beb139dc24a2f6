"""`treadle slurm`: the batch script of a run."""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli._errors import report_errors
from treadle.cli._options import Overrides
from treadle.errors import ConfigError
from treadle.runs.preemption import EXIT_CODE
from treadle.tools.run_config import find_run_dir, load_for_run

if TYPE_CHECKING:
    from treadle.config import ConfigDict

# The text of a batch script for SLURM


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
        f"# status {EXIT_CODE}, and the job is queued again. The same command then resumes where it was, bit for bit.",
        "# Submitted again after a failure, it resumes from the last checkpoint.",
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


STANDARD_OUTPUT = "-"


def slurm(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A lazy config: a .py or .yaml file.")],
    overrides: Overrides = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", "-o", metavar="DIR", help="The run's folder, as for train.")
    ] = None,
    script: Annotated[
        str | None, typer.Option("--script", "-f", metavar="FILE", help="The script; '-' prints it.")
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", help="Machines.")] = 1,
    nproc: Annotated[
        str | None, typer.Option(metavar="N", help="Processes on each machine; by default one for each GPU.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(metavar="N", help="GPUs on each machine.")] = None,
    cpus: Annotated[int | None, typer.Option(metavar="N", help="Cores on each machine.")] = None,
    mem: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of each machine, such as 64G.")] = None,
    time: Annotated[
        str | None, typer.Option(metavar="TIME", help="The longest time of one start: 24:00:00, 2-0.")
    ] = None,
    save_before: Annotated[
        int, typer.Option(metavar="SECONDS", help="So long before the end it is asked to save and leave.")
    ] = 180,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="The partition.")] = None,
    account: Annotated[str | None, typer.Option(metavar="NAME", help="Whom it is charged to.")] = None,
    job_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The job's name; by default that of the run.")
    ] = None,
    max_restarts: Annotated[
        int | None, typer.Option(metavar="N", help="How often dead processes are started again within a job; 3.")
    ] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="A further option of sbatch, such as --qos=long.")
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option(metavar="LINE", help="A line to run first, such as 'module load cuda'.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a script that is there.")] = False,
) -> None:
    """Write the batch script of a run.

    The job is asked to leave before its time is over, saves, and queues itself
    again, until the run is finished. Submitted again by you, it resumes as well.

    \b
    Example:
      treadle slurm configs/gpt.py --nodes 2 --gpus 8 --time 24:00:00
      sbatch gpt.sbatch
    """
    with report_errors("slurm"):
        made = load_for_run(config, overrides or [])
        folder = find_run_dir(made, config, run_dir)
        job = BatchJob(
            name=job_name or folder.name,
            command=[sys.executable, "-m", "treadle.cli", "train", config, "--run-dir", str(folder)],
            changes=overrides or [],
            nodes=nodes,
            processes=_processes(nproc, gpus),
            gpus=gpus,
            cpus=cpus,
            memory=mem,
            time=time,
            save_before=save_before,
            partition=partition,
            account=account,
            max_restarts=max_restarts,
            further=sbatch or [],
            setup=setup or [],
            folder=Path.cwd(),
        )
        _check_batch(made, job)
        _write(batch_script(job), script or f"{job.name}.sbatch", force=force)


def _processes(nproc: str | None, gpus: int | None) -> int:
    if nproc is None or (nproc == "gpu" and gpus is not None):
        return gpus or 1
    if not nproc.isdecimal() or not int(nproc):
        raise ConfigError(f"--nproc {nproc!r} must be a number from 1 up; the machines of the job are not known here")
    if gpus is not None and int(nproc) > gpus:
        raise ConfigError(f"--nproc {nproc} processes on --gpus {gpus}: each process needs one of its own")
    return int(nproc)


def _check_batch(config: "ConfigDict", job: BatchJob) -> None:
    """Refuse batches that cannot be shared out among the processes, before the job has waited for its machines."""
    from treadle.config.resolution import resolve_batch_sizes

    train, dist = config.train, config.train.dist
    together = (dist.tensor_parallel_size or 1) * (dist.pipeline_parallel_size or 1)
    world = job.nodes * job.processes
    if world % together:
        raise ConfigError(
            f"--nodes {job.nodes} with {job.processes} processes each are {world}, no multiple of the {together} that "
            "train.dist.tensor_parallel_size times pipeline_parallel_size need for one copy of the model"
        )
    resolve_batch_sizes(
        train.train_micro_batch_size, train.global_batch_size, train.num_accumulation_steps, world // together
    )


def _write(text: str, script: str, *, force: bool) -> None:
    if script == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
        return
    path = Path(script)
    if path.exists() and not force and path.read_text(encoding="utf-8") != text:
        raise ConfigError(f"{path} is there and says something else; --force writes over it, --script names another")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    typer.echo(f"written to {path}; submit it by: sbatch {shlex.quote(str(path))}")
