"""`treadle slurm`: the batch script of a run."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.batch_script import BatchJob, batch_script
from treadle.cli.options import Overrides
from treadle.cli.reporting import reported
from treadle.cli.sources import folder_for, load_for_run
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from treadle.config import ConfigDict

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
    again, until the run is finished. Submitted by hand, it goes on as well.

    \b
    Example:
      treadle slurm configs/gpt.py --nodes 2 --gpus 8 --time 24:00:00
      sbatch gpt.sbatch
    """
    with reported("slurm"):
        made = load_for_run(config, overrides or [])
        folder = folder_for(made, config, run_dir)
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
