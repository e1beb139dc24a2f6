"""The verbs that save a trainer and bring it back."""

import os
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from treadle._foundation import Foundation
from treadle.checkpoint import CheckpointStore, write_file
from treadle.checkpoint.importing import import_weights, weights_in
from treadle.checkpoint.kinds import STATE, read_checkpoint, read_training_state
from treadle.checkpoint.suffixes import format_of
from treadle.checkpoint.tracked import telling_misfit
from treadle.data import fold_seed
from treadle.data.cudnn_dropout import draws_in_cudnn, hold_dropout
from treadle.data.seeds import seed_generators
from treadle.errors import CheckpointError
from treadle.optimizer_state import OptimizerState
from treadle.parallel import copying
from treadle.resplitting import Split, joined_losses, split_anew

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
        format_of(save_path)
        # Each machine writes the same: the buffers of the first process, as everywhere.
        self.parallel.share_buffers(self.model)
        state: dict[str, Any] = {"model_state_dict": plain_state_dict(self.model)}
        if save_optimizer and self.optimizer is not None:
            states = {name: self._optimizer_state(one) for name, one in self.optimizers().items()}
            state["optimizer_state_dict"] = {name: one.whole() for name, one in states.items()}
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
        state = read_checkpoint(checkpoint_path)
        load_plain_state_dict(self.model, state["model_state_dict"], where=str(checkpoint_path))
        if load_optimizer and "optimizer_state_dict" in state:
            self._load_optimizers(state["optimizer_state_dict"], checkpoint_path)
        if load_scheduler and "scheduler_state_dict" in state:
            if self.scheduler is None:
                raise CheckpointError(
                    f"{checkpoint_path} holds a scheduler, which this trainer has only during train(); "
                    "pass load_scheduler=False"
                )
            with telling_misfit(f"the scheduler in {checkpoint_path}"):
                self.scheduler.load_state_dict(state["scheduler_state_dict"])
        return state

    def import_checkpoint(
        self, path: str | os.PathLike[str], *, load_optimizer: bool = False, load_scheduler: bool = False
    ) -> dict[str, Any]:
        """Load the weights of a file of others: of `torch.save`, pytorch-accelerated's among them, or of safetensors.

        Args:
            path: The file; tensors and plain data in it are read, and nothing in it is run.
            load_optimizer: Whether to take the optimizer's state too, where the file has one.
            load_scheduler: Whether to take the scheduler's state too, where the file has one.
        """
        state = import_weights(path)
        load_plain_state_dict(self.model, weights_in(state), where=str(path))
        if load_optimizer and "optimizer_state_dict" in state:
            found = state["optimizer_state_dict"]
            # One state, or what a trainer of Treadle's keeps: one for each optimizer, by name.
            one = not isinstance(found, dict) or "param_groups" in found
            self._load_optimizers({"optimizer": found} if one else found, path)
        if load_scheduler and "scheduler_state_dict" in state and self.scheduler is not None:
            with telling_misfit(f"the scheduler in {path}"):
                self.scheduler.load_state_dict(state["scheduler_state_dict"])
        return state

    def _load_optimizers(self, states: dict[str, Any], path: str | os.PathLike[str]) -> None:
        present = self.optimizers()
        if not isinstance(states, dict):
            raise CheckpointError(f"{path} holds a {type(states).__name__} where the states of optimizers should be")
        if set(states) != set(present):
            raise CheckpointError(
                f"{path} holds optimizers {sorted(states)}, this trainer has {sorted(present)}; "
                "pass load_optimizer=False to leave them"
            )
        for name, optimizer in present.items():
            with telling_misfit(f"the state of {name!r} in {path}"):
                self._optimizer_state(optimizer).load_whole(states[name])

    def _optimizer_state(self, optimizer: Optimizer) -> OptimizerState:
        """Return what saves and restores an optimizer, or what is here of one whose weights are spread out."""
        if not self.parallel.spreads:
            return OptimizerState(optimizer, self.model)
        self._prepare_model()
        return self.parallel.optimizer_state(optimizer)

    def save_training_state(
        self, output_dir: str | os.PathLike[str], checkpoint_kwargs: dict[str, Any] | None = None
    ) -> None:
        """Write everything that a run needs to go on exactly from here into a folder.

        Between two epochs and after an update the state is whole; inside an epoch's end it is not, so callbacks
        save in `on_update_end`, `on_update_start` or at the end of the run.
        """
        if self.parallel.spreads:
            raise CheckpointError(
                f"save_training_state: {self.parallel.as_argument()} spreads the model over processes, and "
                "one folder by itself cannot be taken up by another plan; give the trainer a run_dir= and save_every="
            )
        self.parallel.share_buffers(self.model)
        state = {"run": self._state(), "kwargs": checkpoint_kwargs or {}}
        write_file(Path(output_dir) / _state_file(self.processes.rank), state)
        self.processes.barrier()

    def load_training_state(self, input_dir: str | os.PathLike[str]) -> dict[str, Any]:
        """Bring the run back to where `save_training_state` saw it; return what was kept beside it.

        Raises:
            CheckpointError: The folder holds no training state, or that of another trainer.
        """
        with telling_misfit(f"the training state in {input_dir}"):
            self._load_state(*self._read_training_state(input_dir))
        return dict(read_training_state(input_dir, _state_file(self.processes.rank))["kwargs"])

    def _read_training_state(self, folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        with telling_misfit(f"the training state in {folder}"):
            own = read_training_state(folder, _state_file(self.processes.rank))
            shared = own if self.processes.is_main else read_training_state(folder, _state_file(0))
            # The lines of metrics are in the folder of the run that saved this, which is left alone.
            shared["run"]["tracked"].pop("metrics_file", None)
            return shared["run"], own["run"]

    def _state(self) -> dict[str, Any]:
        """Return the state of the run; what all ranks have in common is only in the first one's."""
        tracked = self._tracked.state_dict(None if self.processes.is_main else self._is_written)
        return {**self._split_facts(), "tracked": tracked}

    def _split_facts(self) -> dict[str, Any]:
        """Return what another run must know of how this one shares out its batches and its weights."""
        now = self._split()
        facts = {"sharded": self.parallel.spreads, "data": now.data, "batch_size": now.batch_size}
        return {"processes": now.processes, **facts, "copies": self.parallel.loss_copies}

    def _split(self) -> Split:
        """Return how this run shares out its batches."""
        size = None if self.run_config is None else self.run_config.train_per_device_batch_size
        return Split(self.processes.size, self.parallel.data_size, size)

    def _is_written(self, name: str) -> bool:
        """Whether a rank other than the first has something to write of what is tracked under `name`."""
        spread = name in ("model", "callbacks", *self.optimizers())
        return self._is_local(name) or (self.parallel.spreads and spread)

    def _read_shared(self, store: CheckpointStore, step: int) -> dict[str, Any]:
        """Return what processes have in common in the checkpoint at `step`; of spread weights what is needed here."""
        shared: dict[str, Any] = store.read_lazily(step) if self.parallel.spreads else store.read(step, rank=0)
        return shared

    def _read_own(self, store: CheckpointStore, step: int, shared: dict[str, Any]) -> dict[str, Any]:
        """Return the state of this process in the checkpoint at `step`, of which `shared` is the first one's.

        Where batches were shared out otherwise, that is the sums of losses of all processes.
        """
        now = self._split()
        then = Split.of_state(shared, now)
        if then == now:
            own: dict[str, Any] = shared if self.processes.is_main else store.read(step)
            return own
        if then.processes != now.processes or then.data != now.data:
            self.print(
                f"the run had {then.processes} processes and has {now.processes} now: it goes on with the next "
                "samples, but not bit for bit"
            )
        return {"losses": [self._losses_of(store, step, rank, shared) for rank in range(then.processes)]}

    @staticmethod
    def _losses_of(store: CheckpointStore, step: int, rank: int, shared: dict[str, Any]) -> dict[str, Any]:
        state = shared if rank == 0 else store.read(step, rank=rank)
        losses: dict[str, Any] = state["tracked"]["losses"]
        return losses

    def _load_state(self, shared: dict[str, Any], own: dict[str, Any], *, partly: bool = False) -> None:
        """Bring everything tracked back: from the first rank's state, and from `own` what is this rank's alone."""
        now = self._split()
        then = Split.of_state(shared, now)
        if then != now:
            self._load_state_of(then, now, shared, own, partly=partly)
            return
        self._load_all(shared, own, partly=partly)

    def _load_state_of(
        self, then: Split, now: Split, shared: dict[str, Any], own: dict[str, Any], *, partly: bool
    ) -> None:
        """Go on with the state of a run that shared out its batches otherwise; `own` knows the sums of all ranks.

        Raises:
            CheckpointError: The state is that of one rank alone, or its place lies inside a batch of now.
        """
        if then.batch_size is None and now.batch_size is not None:
            raise CheckpointError(
                "the training state was saved before train() had begun, or of a loader that does not say its batch "
                "size; there is nothing in it to go on from with batches of "
                f"{now.batch_size} samples"
            )
        if "losses" not in own and then.processes == now.processes:
            raise CheckpointError(
                f"the training state is of batches of {then.batch_size} samples and this trainer has "
                f"{'no data yet' if now.batch_size is None else now.batch_size}; pass it to train(resume_from=...), "
                "with the batch size that it was saved with"
            )
        if "losses" not in own:
            raise CheckpointError(
                f"the training state was written by {shared['processes']} processes and this run has "
                f"{self.processes.size}; start as many"
            )
        state = split_anew(shared, then, now)
        sums = joined_losses(own["losses"], int(shared.get("copies", 1)), mine=self.parallel.keeps_losses)
        tracked = {**state["tracked"], "losses": sums}
        self._load_all(state, {**state, "tracked": tracked}, partly=partly)
        if self.parallel.data_rank:
            # The first share of the data goes on with its random numbers; the others, new or not, begin with others.
            seed_generators(fold_seed(self._data_seed, self.parallel.data_rank, self.progress.step))
            if draws_in_cudnn(self.model, self.device):
                hold_dropout(self.device)

    def _load_all(self, shared: dict[str, Any], own: dict[str, Any], *, partly: bool) -> None:
        common = {name: value for name, value in shared["tracked"].items() if not self._is_local(name)}
        mine = {name: value for name, value in own["tracked"].items() if self._is_local(name)}
        state = {**common, **mine}
        surplus = [name for name in state if name not in self._tracked.names()] if partly else []
        self._tracked.load_state_dict(state, optional=(*MAIN_ONLY, *surplus))
        for optimizer in self.optimizers().values() if self.progress.step else ():
            # It made its steps before the run was saved; a schedule that now moves first would complain.
            optimizer._opt_called = True  # type: ignore[attr-defined]
        self.this_run.execution.forget()

    def _prepare_model(self) -> None:
        raise NotImplementedError

    @staticmethod
    def _is_local(name: str) -> bool:
        """Whether what is tracked under `name` differs between ranks."""
        return name in LOCAL or name.startswith("stream_")


def _state_file(rank: int) -> str:
    return STATE if rank == 0 else f"rank_{rank}.safetensors"


class ModelState:
    """A model's weights and buffers under the names they have without `torch.compile`."""

    reads_pieces = True

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        """Return weights and buffers, or the pieces of them that this process holds."""
        return without_prefix(copying.state_of(self._model))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take weights and buffers back."""
        load_plain_state_dict(self._model, state, where="the training state")


def plain_state_dict(model: nn.Module) -> dict[str, Any]:
    """Return the weights and buffers of `model`, whole ones, without the prefix of `torch.compile`."""
    return without_prefix(copying.whole_state_of(model))


def without_prefix(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state under the names that it has without `torch.compile`."""
    return {name.replace(COMPILED_PREFIX, ""): value for name, value in state.items()}


def load_plain_state_dict(model: nn.Module, state: dict[str, Any], *, where: str) -> None:
    """Load weights and buffers into `model`, compiled or not.

    Raises:
        CheckpointError: Names or shapes differ; the message lists them.
    """
    if copying.load_state(model, state, where=where):
        return
    actual = {name.replace(COMPILED_PREFIX, ""): name for name in model.state_dict()}
    renamed = {actual.get(name, name): value for name, value in state.items()}
    try:
        model.load_state_dict(renamed)
    except (RuntimeError, AttributeError, TypeError, KeyError) as error:
        raise CheckpointError(f"{where} does not fit the model: {error}") from error
