"""The verbs that save a trainer and bring it back."""

import os
from pathlib import Path
from typing import Any

from torch import nn

from treadle._foundation import Foundation
from treadle.checkpoint import import_torch, read_file, write_file
from treadle.checkpoint.importing import weights_in
from treadle.errors import CheckpointError

LOCAL = ("random", "losses")
"""What differs between the ranks of a run, beside their places in the data."""

MAIN_ONLY = ("metrics_file",)
"""What only the first rank has, and a run in another folder may lack."""

COMPILED_PREFIX = "_orig_mod."


class Saving(Foundation):
    """Checkpoints of weights for others to use, and training states to go on from."""

    def save_checkpoint(
        self,
        save_path: str | os.PathLike[str],
        checkpoint_kwargs: dict[str, Any] | None = None,
        save_optimizer: bool = True,
        save_scheduler: bool = True,
        save_per_node: bool = True,
    ) -> None:
        """Write model, optimizer and scheduler into one file of exactly this name.

        The file is in the safetensors format with everything else as JSON in its header, whatever its suffix.

        Args:
            save_path: The file.
            checkpoint_kwargs: Plain data and tensors to keep beside them.
            save_optimizer: Whether the optimizer's state is kept.
            save_scheduler: Whether the scheduler's state is kept.
            save_per_node: Whether the first process of every machine writes, or only the first of all.
        """
        state: dict[str, Any] = {"model_state_dict": plain_state_dict(self.model)}
        if save_optimizer and self.optimizer is not None:
            state["optimizer_state_dict"] = _states(self.optimizers())
        if save_scheduler and self.scheduler is not None:
            state["scheduler_state_dict"] = self.scheduler.state_dict()
        state.update(checkpoint_kwargs or {})
        if self.processes.is_local_main if save_per_node else self.processes.is_main:
            write_file(save_path, state)
        self.processes.barrier()

    def load_checkpoint(
        self, checkpoint_path: str | os.PathLike[str], load_optimizer: bool = True, load_scheduler: bool = True
    ) -> dict[str, Any]:
        """Load what `save_checkpoint` wrote into this trainer, and return all of it.

        Raises:
            CheckpointError: The file is damaged, does not fit the model, or holds a state for an optimizer or a
                scheduler that this trainer does not have.
        """
        state: dict[str, Any] = read_file(checkpoint_path)
        load_plain_state_dict(self.model, state["model_state_dict"], where=str(checkpoint_path))
        if load_optimizer and "optimizer_state_dict" in state:
            self._load_optimizers(state["optimizer_state_dict"], checkpoint_path)
        if load_scheduler and "scheduler_state_dict" in state:
            if self.scheduler is None:
                raise CheckpointError(
                    f"{checkpoint_path} holds a scheduler, which this trainer has only during train(); "
                    "pass load_scheduler=False"
                )
            self.scheduler.load_state_dict(state["scheduler_state_dict"])
        return state

    def import_checkpoint(
        self, path: str | os.PathLike[str], *, load_optimizer: bool = False, load_scheduler: bool = False
    ) -> dict[str, Any]:
        """Load the weights of a file that `torch.save` wrote, pytorch-accelerated's checkpoints among them.

        Args:
            path: The file; tensors and plain data in it are read, and nothing in it is run.
            load_optimizer: Whether to take the optimizer's state too, where the file has one.
            load_scheduler: Whether to take the scheduler's state too, where the file has one.
        """
        state = import_torch(path)
        load_plain_state_dict(self.model, weights_in(state), where=str(path))
        if load_optimizer and "optimizer_state_dict" in state:
            self._load_optimizers({"optimizer": state["optimizer_state_dict"]}, path)
        if load_scheduler and "scheduler_state_dict" in state and self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler_state_dict"])
        return state

    def _load_optimizers(self, states: dict[str, Any], path: str | os.PathLike[str]) -> None:
        present = self.optimizers()
        if set(states) != set(present):
            raise CheckpointError(
                f"{path} holds optimizers {sorted(states)}, this trainer has {sorted(present)}; "
                "pass load_optimizer=False to leave them"
            )
        for name, optimizer in present.items():
            optimizer.load_state_dict(states[name])

    def save_training_state(
        self, output_dir: str | os.PathLike[str], checkpoint_kwargs: dict[str, Any] | None = None
    ) -> None:
        """Write everything that a run needs to go on exactly from here into a folder.

        Between two epochs and after an update the state is whole; inside an epoch's end it is not, so callbacks
        save in `on_update_end`, `on_update_start` or at the end of the run.
        """
        state = {"run": self._state(), "kwargs": checkpoint_kwargs or {}}
        write_file(Path(output_dir) / _state_file(self.processes.rank), state)
        self.processes.barrier()

    def load_training_state(self, input_dir: str | os.PathLike[str]) -> dict[str, Any]:
        """Bring the run back to where `save_training_state` saw it; return what was kept beside it.

        Raises:
            CheckpointError: The folder holds no training state, or that of another trainer.
        """
        self._load_state(*self._read_training_state(input_dir))
        return dict(read_file(Path(input_dir) / _state_file(self.processes.rank))["kwargs"])

    def _read_training_state(self, folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        own = read_file(Path(folder) / _state_file(self.processes.rank))
        shared = own if self.processes.is_main else read_file(Path(folder) / _state_file(0))
        # The lines of metrics are in the folder of the run that saved this, which is left alone.
        shared["run"]["tracked"].pop("metrics_file", None)
        return shared["run"], own["run"]

    def _state(self) -> dict[str, Any]:
        """Return the state of the run; what all ranks have in common is only in the first one's."""
        tracked = self._tracked.state_dict(None if self.processes.is_main else self._is_local)
        return {"processes": self.processes.size, "tracked": tracked}

    def _load_state(self, shared: dict[str, Any], own: dict[str, Any], *, partly: bool = False) -> None:
        """Bring everything tracked back: from the first rank's state, and from `own` what is this rank's alone."""
        if shared["processes"] != self.processes.size:
            raise CheckpointError(
                f"the training state was written by {shared['processes']} processes and this run has "
                f"{self.processes.size}; start as many"
            )
        common = {name: value for name, value in shared["tracked"].items() if not self._is_local(name)}
        mine = {name: value for name, value in own["tracked"].items() if self._is_local(name)}
        state = {**common, **mine}
        surplus = [name for name in state if name not in self._tracked.names()] if partly else []
        self._tracked.load_state_dict(state, optional=(*MAIN_ONLY, *surplus))
        if self._graphs is not None:
            self._graphs.forget()

    @staticmethod
    def _is_local(name: str) -> bool:
        """Whether what is tracked under `name` differs between ranks."""
        return name in LOCAL or name.startswith("stream_")


def _state_file(rank: int) -> str:
    return "state.safetensors" if rank == 0 else f"rank_{rank}.safetensors"


class ModelState:
    """A model's weights and buffers under the names they have without `torch.compile`."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        """Return weights and buffers."""
        return plain_state_dict(self._model)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take weights and buffers back."""
        load_plain_state_dict(self._model, state, where="the training state")


def plain_state_dict(model: nn.Module) -> dict[str, Any]:
    """Return the weights and buffers of `model` without the prefix of `torch.compile`."""
    return {name.replace(COMPILED_PREFIX, ""): value for name, value in model.state_dict().items()}


def load_plain_state_dict(model: nn.Module, state: dict[str, Any], *, where: str) -> None:
    """Load weights and buffers into `model`, compiled or not.

    Raises:
        CheckpointError: Names or shapes differ; the message lists them.
    """
    actual = {name.replace(COMPILED_PREFIX, ""): name for name in model.state_dict()}
    renamed = {actual.get(name, name): value for name, value in state.items()}
    try:
        model.load_state_dict(renamed)
    except RuntimeError as error:
        raise CheckpointError(f"{where} does not fit the model: {error}") from error


def _states(optimizers: dict[str, Any]) -> dict[str, Any]:
    return {name: optimizer.state_dict() for name, optimizer in optimizers.items()}
