"""The batch script of a run: its text, what it refuses, and what it does when it is run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Treadle

GOLDEN = Path(__file__).parent / "golden" / "small.sbatch"
CONFIG = "configs/small.py"

JOB = [
    *("--nodes", "2", "--gpus", "4", "--cpus", "16", "--mem", "64G", "--time", "1-00:00:00", "--save-before", "300"),
    *("--partition", "long", "--account", "vision", "--sbatch", "--qos=high", "--setup", "module load cuda"),
    *("--max-restarts", "5"),
]


def test_the_script_is_the_golden_one(project: Path, treadle: Treadle) -> None:
    result = treadle("slurm", CONFIG, "width=16", "+optim.betas=[0.9,0.95]", *JOB)
    assert " ".join(result.output.split()) == "written to small.sbatch; submit it by: sbatch small.sbatch"
    written = (project / "small.sbatch").read_text()
    assert written.replace(str(project), "HERE").replace(sys.executable, "PYTHON") == GOLDEN.read_text()


def test_the_script_can_be_printed(project: Path, treadle: Treadle) -> None:
    assert treadle("slurm", CONFIG, "--script", "-").output.startswith("#!/bin/bash\n#SBATCH --job-name=small\n")
    assert list(project.glob("*.sbatch")) == []


def test_a_script_that_is_there_is_not_written_over_unless_it_is_the_same(project: Path, treadle: Treadle) -> None:
    for _ in range(2):
        treadle("slurm", CONFIG)
    result = treadle("slurm", CONFIG, "--nodes", "2", status=1)
    assert "small.sbatch is there and says something else; --force writes over it" in " ".join(result.stderr.split())
    treadle("slurm", CONFIG, "--nodes", "2", "--force")
    assert "--nodes=2" in (project / "small.sbatch").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--nodes", "0"), "--nodes 0 must be a number from 1 up"),
        (("--time", "a day"), "--time 'a day' is no time of SLURM's; write 90 (minutes), 24:00:00 or 2-00:00:00"),
        (("--sbatch", "qos=long"), "--sbatch 'qos=long' is no option of sbatch; write it whole, such as --qos=long"),
        (("--setup", "a\nb"), "'a\\nb' has a line break, which a line of a batch script cannot hold"),
        (("--nproc", "many"), "--nproc 'many' must be a number from 1 up; the machines of the job are not known here"),
        (("--nproc", "8", "--gpus", "4"), "--nproc 8 processes on --gpus 4: each process needs one of its own"),
        (
            ("--nodes", "3", "train.global_batch_size=64"),
            "global_batch_size=64 is no multiple of train_micro_batch_size=8 times data_parallel_size=3, which is 24",
        ),
        (
            ("--nodes", "3", "train.dist.tensor_parallel_size=2"),
            "--nodes 3 with 1 processes each are 3, no multiple of the 2 that train.dist.tensor_parallel_size times",
        ),
    ],
)
def test_a_job_that_could_not_run_is_refused(
    project: Path, treadle: Treadle, arguments: tuple[str, ...], message: str
) -> None:
    result = treadle("slurm", CONFIG, *arguments, status=1)
    assert " ".join(result.stderr.split()).startswith(f"treadle slurm: {message}")


@pytest.fixture
def commands(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SLURM's commands in the place of the real ones: each notes its arguments, and srun ends with $ENDS."""
    folder = project / "bin"
    folder.mkdir()
    for name in ("srun", "scontrol"):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "{project}/calls"\nexit ${{ENDS:-0}}\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    return project / "calls"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to run the script")
@pytest.mark.parametrize(("status", "requeues"), [(0, False), (1, False), (75, True), (137, False)])
def test_a_job_is_queued_again_only_if_its_run_was_asked_to_leave(
    project: Path, treadle: Treadle, commands: Path, monkeypatch: pytest.MonkeyPatch, status: int, requeues: bool
) -> None:
    treadle("slurm", CONFIG, "--nodes", "2")
    monkeypatch.setenv("ENDS", str(status))
    done = subprocess.run(["bash", "small.sbatch"], cwd=project)
    assert done.returncode == status
    called = commands.read_text().splitlines()
    assert called[0].startswith("srun --kill-on-bad-exit=0 --wait=600 ")
    assert called[0].endswith("-m treadle.cli train configs/small.py --run-dir runs/small --nproc 1")
    assert called[1:] == (["scontrol requeue 4711"] if requeues else [])
