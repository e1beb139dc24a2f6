"""Runs that are kept in a folder: left and taken up again, and steps whose loss went wrong on one rank."""

import errno
import os
import shutil
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.interrupting import Updates
from tests.parallel.programs.models import BadLoss, flat, outcome, per_device, samples, trainer_of
from tests.parallel.programs.scenarios import Program, Report
from treadle import Trainer, TrainerCallback
from treadle.checkpoint import CheckpointStore, Policy
from treadle.errors import NonFiniteError
from treadle.runs.preemption import PreemptedExit

program = Program("keeping")


def kept(
    name: str | Path, kind: type[Trainer] = Trainer, *, seed: int = 7, dropout: float = 0.3, **settings: Any
) -> Trainer:
    """Return a trainer of a model with dropout, whose run is kept under `name`."""
    torch.manual_seed(seed)
    layers = nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3)
    model = nn.Sequential(*layers).double()
    folder = name if isinstance(name, Path) else program.folder / name
    return trainer_of(model, kind, run_dir=folder, **settings)


def run(trainer: Trainer, **settings: Any) -> Report:
    """Train for three epochs of seven updates, saving after every third update."""
    settings = {"num_epochs": 3, "save_every": 3, "log_every": 4} | settings
    data, evaluation = samples(77), samples(17, seed=1)
    result = trainer.train(data, eval_dataset=evaluation, per_device_batch_size=per_device(trainer), **settings)
    return outcome(trainer, result)


class Signal(TrainerCallback):
    """Asks the process to leave, on the last rank only, after some updates."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
        if trainer.progress.step == self._step and trainer.processes.rank == trainer.processes.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)


@program.scenario
def left_and_taken_up() -> Report:
    """Run once without a stop; once with a signal to one rank, and on from there with other weights."""
    whole = run(kept("whole"))
    left = kept("left", callbacks=(Signal(12),))
    try:
        run(left)
        code = 0
    except PreemptedExit as leaving:
        code = leaving.code
    torch.manual_seed(99)
    updates = Updates()
    again = run(kept("left", seed=50, callbacks=(updates,)), resume="auto")
    return {
        "code": code,
        "left_at": left.progress.step,
        "whole": whole["weights"],
        "again": again["weights"],
        "history": whole["history"],
        "history_again": again["history"],
        "steps": again["steps"],
        "updates": (updates.began, updates.made),
    }


def largest(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of the largest output."""
    return outputs.amax(1).mean()


MEASURED: dict[str, Any] = {"dropout": 0.0, "metrics": {"accuracy": "accuracy", "f1": "f1", "largest": largest}}


@program.scenario
def measured() -> Report:
    """Measure training in a run without a stop; and in one that is left inside an epoch and taken up from there."""
    whole = run(kept("measured_whole", **MEASURED))
    left = kept("measured", callbacks=(Signal(17),), **MEASURED)
    with suppress(PreemptedExit):
        run(left)
    if left.processes.is_main:
        shutil.copytree(program.folder / "measured", program.folder / "measured_on_two")
    left.processes.barrier()
    updates = Updates()
    again = run(kept("measured", callbacks=(updates,), **MEASURED), resume="auto")
    return {
        "whole": whole["history"],
        "again": again["history"],
        "left_at": left.progress.step,
        "updates": (updates.began, updates.made),
    }


@program.scenario
def killed_between_two_checkpoints() -> Report:
    """Take up a run whose newest checkpoint is gone: it goes on from the one before."""
    whole = run(kept("killed"))
    checkpoints = program.folder / "killed" / "checkpoints"
    updates = Updates()
    trainer = kept("killed", seed=50, callbacks=(updates,))
    if trainer.processes.is_main:
        for step in (21, 18):
            shutil.rmtree(checkpoints / f"step_{step:08d}", ignore_errors=True)
    trainer.processes.barrier()
    again = run(trainer, resume="auto")
    report = {"whole": whole["weights"], "again": again["weights"], "steps": again["steps"]}
    return {**report, "updates": (updates.began, updates.made)}


class Judge(TrainerCallback):
    """Reports a score that is another one on each rank: the first improves at once, others at every epoch."""

    def on_eval_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        epoch = trainer.progress.epoch
        trainer.run_history.update_metric("score", float(epoch if trainer.processes.rank else -epoch))


@program.scenario
def judged() -> Report:
    """Save nothing but what is the best, by a score on which ranks do not agree."""
    policy = Policy(best="score", greater_is_better=True)
    report = run(kept("judged", callbacks=(Judge,), checkpoints=policy), save_every=100)
    store = CheckpointStore(program.folder / "judged" / "checkpoints", policy)
    return {"steps": report["steps"], "best": store.pointer("best"), "saved": store.steps()}


@program.scenario
def skipped() -> Report:
    return run(kept("skipped", BadLoss.at(5), dropout=0.0, on_nonfinite="skip"))


def saved_with_a_bad_loss(name: str, **settings: Any) -> Report:
    trainer = kept(name, BadLoss.at(6), dropout=0.0, **settings)
    try:
        return run(trainer, log_every=100) | {"message": ""}
    except NonFiniteError as error:
        return {"message": str(error), "weights": flat(trainer.model)}


def rolled_back(step: int) -> Report:
    """Go wrong at a step on one rank; the run returns to a checkpoint and leaves the data of that step out."""
    return run(kept(f"rolled_back_{step}", BadLoss.at(step), dropout=0.0, on_nonfinite="rollback"))


@program.fragile_scenario
def disk_full_at_the_end() -> Report:
    """Fail to write the last checkpoint, on the first rank only and once; then go on without the folder's help."""
    commit, failures = CheckpointStore._commit, []

    def fail_once(store: CheckpointStore, part: Path, step: int, facts: dict[str, Any]) -> None:
        if facts["finished"] and not failures:
            failures.append(step)
            raise OSError(errno.ENOSPC, "No space left on device")
        commit(store, part, step, facts)

    CheckpointStore._commit = fail_once  # type: ignore[method-assign]
    try:
        report = run(kept("full", checkpoints=Policy(on_error="warn")))
    finally:
        CheckpointStore._commit = commit  # type: ignore[method-assign]
    manifest = CheckpointStore(program.folder / "full" / "checkpoints", Policy()).manifest(21, verify=True)
    whole = run(kept("never_full"))
    return report | {"failures": failures, "finished": manifest["finished"], "whole": whole["weights"]}


program.add("rolled_back_at_a_log", partial(rolled_back, 8))
program.add("bad_loss_when_saving", partial(saved_with_a_bad_loss, "raised_when_saving"))
program.fragile.append("bad_loss_when_saving")
