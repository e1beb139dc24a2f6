"""Methods of `Trainer` for files beside those of its runs: whole checkpoints, and folders to resume from."""

import os
from pathlib import Path
from typing import Any

from treadle.checkpoint.format.file import write_file
from treadle.checkpoint.format.kinds import read_checkpoint, read_training_state
from treadle.checkpoint.format.suffixes import file_format
from treadle.checkpoint.importers.transformers_trainer import (
    OPTIMIZER,
    fitted_optimizer,
    fitted_weights,
    is_trainer_folder,
    read_trainer_folder,
)
from treadle.checkpoint.importers.weights import import_weights, weights_in
from treadle.checkpoint.model_state import load_plain_state_dict, plain_state_dict
from treadle.checkpoint.run_state import state_file
from treadle.checkpoint.tracked import explaining_mismatch
from treadle.errors import CheckpointError
from treadle.loop.interfaces import RunningTrainer


def save_checkpoint(
    self: RunningTrainer,
    save_path: str | os.PathLike[str],
    checkpoint_kwargs: dict[str, Any] | None = None,
    save_optimizer: bool = True,
    save_scheduler: bool = True,
    save_per_node: bool = True,
) -> None:
    """Write model, optimizer and scheduler into one file of exactly this name.

    `torch.load(weights_only=True)` reads a `.pt`, `.pth`, `.bin`, `.ckpt`, `.th` or `.torch`; under other names
    the file is in the safetensors format with everything else as JSON in its header.

    Args:
        save_path: The file.
        checkpoint_kwargs: Plain data and tensors to keep beside them.
        save_optimizer: Whether the optimizer's state is kept.
        save_scheduler: Whether the scheduler's state is kept.
        save_per_node: Whether the first process of every machine writes, or only the first of all.

    Raises:
        CheckpointError: The name is that of a format which is not written, such as `.onnx`, or the file cannot be
            written.
    """
    file_format(save_path)
    # Each machine writes the same: the buffers of the first process, as everywhere.
    self.parallel.share_buffers(self.model)
    state: dict[str, Any] = {"model_state_dict": plain_state_dict(self.model)}
    if save_optimizer and self.optimizer is not None:
        states = {name: self.this_run.state.of_optimizer(one) for name, one in self.optimizers().items()}
        state["optimizer_state_dict"] = {name: one.whole() for name, one in states.items()}
    if save_scheduler and self.scheduler is not None:
        state["scheduler_state_dict"] = self.scheduler.state_dict()
    state.update(checkpoint_kwargs or {})
    if self.processes.is_local_main if save_per_node else self.processes.is_main:
        write_file(save_path, state)
    self.processes.barrier()


def load_checkpoint(
    self: RunningTrainer,
    checkpoint_path: str | os.PathLike[str],
    load_optimizer: bool = True,
    load_scheduler: bool = True,
) -> dict[str, Any]:
    """Load what `save_checkpoint` wrote into this trainer, and return all of it.

    Raises:
        CheckpointError: The file is damaged, does not fit the model, or holds a state for an optimizer or a
            scheduler that this trainer does not have.
    """
    state = read_checkpoint(checkpoint_path)
    load_plain_state_dict(self.model, state["model_state_dict"], where=str(checkpoint_path))
    if load_optimizer and "optimizer_state_dict" in state:
        _load_optimizers(self, state["optimizer_state_dict"], checkpoint_path)
    if load_scheduler and "scheduler_state_dict" in state:
        if self.scheduler is None:
            raise CheckpointError(
                f"{checkpoint_path} holds a scheduler, which this trainer has only during train(); "
                "pass load_scheduler=False"
            )
        with explaining_mismatch(f"the scheduler in {checkpoint_path}"):
            self.scheduler.load_state_dict(state["scheduler_state_dict"])
    return state


def import_checkpoint(
    self: RunningTrainer, path: str | os.PathLike[str], *, load_optimizer: bool = False, load_scheduler: bool = False
) -> dict[str, Any]:
    """Load the weights of a file of others: of `torch.save`, pytorch-accelerated's among them, or of safetensors.

    A folder is a checkpoint of transformers' Trainer, or what `save_pretrained` wrote. What of it is not brought over
    is told; the run begins at step 0.

    Args:
        path: The file or folder; tensors and plain data in it are read, and nothing in it is run.
        load_optimizer: Whether to take the optimizer's state too, where there is one.
        load_scheduler: Whether to take the scheduler's state too, where there is one; a trainer has a scheduler from
            `on_training_run_start` on.

    Returns:
        What was read.
    """
    state = _read_folder(self, Path(path)) if Path(path).is_dir() else import_weights(path)
    load_plain_state_dict(self.model, weights_in(state), where=str(path))
    if load_optimizer and "optimizer_state_dict" in state:
        found = state["optimizer_state_dict"]
        # One state, or what a trainer of Treadle's keeps: one for each optimizer, by name.
        one = not isinstance(found, dict) or "param_groups" in found
        _load_optimizers(self, {"optimizer": found} if one else found, path)
    if load_scheduler and "scheduler_state_dict" in state:
        if self.scheduler is None:
            self.print(f"{path}: the state of the scheduler is left, since this trainer has none before train()")
        else:
            with explaining_mismatch(f"the scheduler in {path}"):
                self.scheduler.load_state_dict(state["scheduler_state_dict"])
    return state


def _read_folder(trainer: RunningTrainer, path: Path) -> dict[str, Any]:
    """Return what a checkpoint folder of transformers holds, fitted to a trainer, and say what is left of it."""
    if not is_trainer_folder(path):
        raise CheckpointError(f"{path} is a folder without a model.safetensors, and no checkpoint of transformers")
    found = read_trainer_folder(path)
    state: dict[str, Any] = {"model_state_dict": fitted_weights(found, trainer.model, str(path)), **found.facts}
    one = next(iter(trainer.optimizers().values()), None)
    if found.optimizer is not None and one is not None and len(trainer.optimizers()) == 1:
        where = f"{path / OPTIMIZER}"
        state["optimizer_state_dict"] = fitted_optimizer(found.optimizer, trainer.model, one, where)
    if found.scheduler is not None:
        state["scheduler_state_dict"] = found.scheduler
    left = ", ".join(["where its data stood", *found.passed_over])
    trainer.print(f"{path}: not brought over: {left}")
    return state


def _load_optimizers(trainer: RunningTrainer, states: dict[str, Any], path: str | os.PathLike[str]) -> None:
    present = trainer.optimizers()
    if not isinstance(states, dict):
        raise CheckpointError(f"{path} holds a {type(states).__name__} where the states of optimizers should be")
    if set(states) != set(present):
        raise CheckpointError(
            f"{path} holds optimizers {sorted(states)}, this trainer has {sorted(present)}; "
            "pass load_optimizer=False to leave them"
        )
    for name, optimizer in present.items():
        with explaining_mismatch(f"the state of {name!r} in {path}"):
            trainer.this_run.state.of_optimizer(optimizer).load_whole(states[name])


def save_training_state(
    self: RunningTrainer, output_dir: str | os.PathLike[str], checkpoint_kwargs: dict[str, Any] | None = None
) -> None:
    """Write everything that a run needs to go on exactly from here into a folder.

    Between two epochs and after an update the state is whole; inside an epoch's end it is not, so callbacks
    save in `on_update_end`, `on_update_start` or at the end of the run.
    """
    if self.parallel.is_sharded:
        raise CheckpointError(
            f"save_training_state: {self.parallel.as_argument()} shards the model over processes, and "
            "one folder by itself cannot be taken up by another plan; give the trainer a run_dir= and save_every="
        )
    self.parallel.share_buffers(self.model)
    state = {"run": self.this_run.state.state_dict(), "kwargs": checkpoint_kwargs or {}}
    write_file(Path(output_dir) / state_file(self.processes.rank), state)
    self.processes.barrier()


def load_training_state(self: RunningTrainer, input_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Bring the run back to where `save_training_state` saw it; return what was kept beside it.

    Raises:
        CheckpointError: The folder holds no training state, or that of another self.
    """
    with explaining_mismatch(f"the training state in {input_dir}"):
        self.this_run.state.load(*self.this_run.state.read(input_dir))
    return dict(read_training_state(input_dir, state_file(self.processes.rank))["kwargs"])
