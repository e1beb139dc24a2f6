"""A training run to be killed: everything that moves is in it, and its outcome is written to be compared.

Run as `python -m tests.crash.program FOLDER`, or by torchrun, it is a program like a user's: started again with the
same command, it resumes where it was.
"""

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from tests.crash.data import BATCH, Images, make_data
from tests.interrupting import Updates
from tests.storages import KEPT, place_in, storage_in
from treadle import Trainer, TrainerCallback, TrainerPlaceholderValues
from treadle.callbacks import EarlyStoppingCallback, ModelEmaCallback
from treadle.checkpoint import Policy, write_file
from treadle.data import RandomState
from treadle.parallel import Plan
from treadle.parallel.state_dict import gather_state

OUTCOME = "outcome.safetensors"
UPDATES = "updates.txt"
"""The file that says from which step the last start went on, and how many updates it made."""
WAITING = "waiting"
"""The file that says that the program has come to where it waits."""
ASKED = "asked"
"""The file that says that it knows of the signal it waited for."""
SECONDS_TO_HEAR = 0.5


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to train.

    Attributes:
        folder: The folder of the run; the outcome is written beside its files.
        storage: In which kind of place within the folder the run is kept, see `tests.storages`.
        data: Which kind of data, see `make_data`.
        workers: Processes that fetch.
        epochs: Passes over the data.
        save_every: How often the run is saved.
        keep_last: How many checkpoints are kept.
        asynchronous: Whether checkpoints are written by a thread.
        patience: Evaluations without an improvement that end the run.
        wait_at: The step at whose end it says that it is there, and waits until it is asked to leave; 0 is none.
        kill_at_operation: Which of the process's operations on the checkpoint folder kills it; 0 is none.
        kill_ranks_at: Which of several ranks are killed at which operation, as "rank:operation"; one in each start.
        kill_after_finish: Whether it is killed when the finished run was saved, before it could say so.
        shard: Over how many ranks the weights are sharded; 1 leaves each of them all.
        kill_at_steps: At which steps it is killed, once each; of several ranks, the one that is the step modulo
            their number.
    """

    folder: Path
    storage: str = "folder"
    data: str = "images"
    workers: int = 2
    epochs: int = 3
    save_every: str = "2 steps"
    shard: int = 1
    keep_last: int = 2
    asynchronous: bool = True
    patience: int = 50
    wait_at: int = 0
    kill_at_operation: int = 0
    kill_after_finish: bool = False
    kill_ranks_at: list[str] = field(default_factory=list)
    kill_at_steps: list[int] = field(default_factory=list)


class Interruptions(TrainerCallback):
    """Waits or dies where the options say so."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Wait; die at this step if it is one to die at, but only once."""
        step, processes = trainer.progress.step, trainer.processes
        if step == self._options.wait_at:
            self._wait_for_a_request(trainer)
        mark = self._options.folder / f"killed_at_{step}"
        chosen = step in self._options.kill_at_steps and step % processes.size == processes.rank
        if chosen and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def _wait_for_a_request(self, trainer: Trainer) -> None:
        (self._options.folder / WAITING).touch()
        while not trainer.this_run.stop.is_asked_to_leave():
            time.sleep(0.01)
        (self._options.folder / ASKED).touch()
        # Long enough to hear of a worker that a signal has ended.
        time.sleep(SECONDS_TO_HEAR)

    def on_training_run_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Die after the last checkpoint."""
        if self._options.kill_after_finish:
            os.kill(os.getpid(), signal.SIGKILL)


def make_model() -> nn.Module:
    """Return a small network with running statistics and dropout."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(512, 4))


def make_schedule(options: Options) -> Any:
    """Return a one-cycle schedule over the run; over a fixed number of steps if the data has no length."""
    if "sequence" in options.data:
        return partial(OneCycleLR, max_lr=0.01, total_steps=100)
    placeholders = TrainerPlaceholderValues
    return partial(
        OneCycleLR,
        max_lr=0.01,
        epochs=placeholders.NUM_EPOCHS,
        steps_per_epoch=placeholders.NUM_UPDATE_STEPS_PER_EPOCH,
    )


def train(options: Options) -> None:
    """Train until the end, from wherever the run in the folder is, and write the outcome."""
    torch.set_num_threads(1)
    if options.kill_at_operation:
        die_at_operation(_checkpoints(options), options.kill_at_operation)
    if options.kill_ranks_at:
        prepare_to_die(options)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    average = ModelEmaCallback(decay=0.9, save_path=options.folder / "average.pt")
    updates = Updates()
    stopping = EarlyStoppingCallback(early_stopping_patience=options.patience)
    trainer = Trainer(
        model,
        nn.CrossEntropyLoss(),
        optimizer,
        callbacks=(average, stopping, updates, Interruptions(options)),
        run_dir=place_in(options.storage, options.folder),
        seed=7,
        precision="bf16",
        checkpoints=Policy(keep_last=options.keep_last, best="eval_loss_epoch", asynchronous=options.asynchronous),
        parallel="auto" if options.shard == 1 else Plan(shard=options.shard),
    )
    result = trainer.train(
        make_data(options.data, options.workers),
        num_epochs=options.epochs,
        eval_dataset=Images(20),
        per_device_batch_size=BATCH,
        gradient_accumulation_steps=2,
        create_scheduler_fn=make_schedule(options),
        train_dataloader_kwargs={"num_workers": options.workers} if options.data == "images" else None,
        save_every=options.save_every,
        log_every=5,
        resume="auto",
    )
    outcome = {
        "model": gather_state(model),
        "optimizer": trainer.this_run.state.of_optimizer(optimizer).whole(),
        "scheduler": trainer.scheduler.state_dict(),
        "average": average.state_dict() | {"module": gather_state(average.ema_model.module)},
        "stopping": stopping.state_dict(),
        "random": RandomState().state_dict(),
        "history": result.history,
        "steps": result.steps,
        "epochs": result.epochs,
    }
    if trainer.processes.is_main:
        write_file(options.folder / OUTCOME, outcome)
        if options.storage != "folder":
            lines = storage_in(options.storage, options.folder).read("metrics.jsonl")
            (options.folder / "metrics.jsonl").write_bytes(lines)
        (options.folder / UPDATES).write_text(f"{updates.began} {updates.made}")


def prepare_to_die(options: Options) -> None:
    """Have this process killed at an operation on its checkpoints, if it is the next of the ranks to be killed."""
    places = [place.partition(":") for place in options.kill_ranks_at]
    marks = [options.folder / f"killed_at_operation_{operation}_of_rank_{rank}" for rank, _, operation in places]
    left = [(place, mark) for place, mark in zip(places, marks, strict=True) if not mark.exists()]
    if left and left[0][0][0] == os.environ["RANK"]:
        (_, _, operation), mark = left[0]
        die_at_operation(_checkpoints(options), int(operation), mark)


def _checkpoints(options: Options) -> Path:
    """Return what the names of the files begin with at which operations the program is killed."""
    return options.folder / ("checkpoints" if options.storage == "folder" else KEPT)


def die_at_operation(folder: Path, number: int, mark: Path | None = None) -> None:
    """Have this process killed when it opens, renames or removes something in `folder` for the `number`th time."""
    count = 0
    counted = "tests.storage", "open", "os.link", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in counted:
            return
        if str(arguments[0]).startswith(str(folder)):
            count += 1
            if count == number:
                if mark is not None:
                    mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def parse_options(arguments: list[str]) -> Options:
    """Read the options from a command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for option in fields(Options)[1:]:
        name = "--" + option.name.replace("_", "-")
        if option.type is bool:
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=option.default)
        elif option.name in ("kill_at_steps", "kill_ranks_at"):
            parser.add_argument(name, type=int if option.name == "kill_at_steps" else str, nargs="*", default=[])
        else:
            parser.add_argument(name, type=type(option.default), default=option.default)
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    train(parse_options(sys.argv[1:]))
