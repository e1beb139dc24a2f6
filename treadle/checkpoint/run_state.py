"""What a run is made of where it stands, and how it is brought back there."""

import os
from typing import Any

from torch.optim import Optimizer

from treadle.checkpoint.format.kinds import STATE, read_training_state
from treadle.checkpoint.model_state import ModelState
from treadle.checkpoint.store import CheckpointStore
from treadle.checkpoint.tracked import explaining_mismatch
from treadle.data import RandomState, fold_seed
from treadle.data.random_state import draws_in_cudnn, hold_dropout
from treadle.data.seeds import seed_generators
from treadle.errors import CheckpointError
from treadle.loop.interfaces import RunningTrainer
from treadle.loop.metrics import joined_metrics
from treadle.optim.state import OptimizerState
from treadle.runs.description import kept_by
from treadle.runs.elastic import Split, joined_losses, split_anew

LOCAL = ("random", "losses", "train_metrics")
"""What differs between the ranks of a run, beside their places in the data."""

OPTIONAL = ("metrics_file", "execution", "train_metrics")
"""What a run may lack: what only the first rank has, or only runs have that choose, or that measure."""

Restored = tuple[dict[str, Any], dict[str, Any]]
"""A state to resume from: what all ranks have in common, and what is this one's."""


class RunState:
    """The state of a run: everything that is tracked, with how its batches are shared out.

    Args:
        trainer: Whose run it is.

    Attributes:
        restored: The state that the run continues from; None once it has moved on, or where it begins.
        began_at: The step at which this start of the run began; None before.
    """

    def __init__(self, trainer: RunningTrainer) -> None:
        self.trainer = trainer
        self.restored: Restored | None = None
        self.began_at: int | None = None

    def begin(self) -> bool:
        """Forget the state that was loaded: the run is where it was, and moves on; return whether it did not before."""
        self.restored = None
        first = self.began_at is None
        if first:
            self.began_at = self.trainer.progress.step
        return first

    def track(self) -> None:
        """Name everything that changes while the run continues; a checkpoint is this and nothing else."""
        trainer, run = self.trainer, self.trainer.this_run
        trainer.track(model=ModelState(trainer.model))
        for name, optimizer in trainer.optimizers().items():
            trainer.track(**{name: self.of_optimizer(optimizer)})
        # An earlier run of this trainer may have had them, and what it tracked would be saved with this one.
        for name in ("scheduler", "stream_evaluation", "gate", "train_metrics"):
            trainer.tracked.remove(name)
        if run.schedule.scheduler is not None:
            trainer.track(scheduler=run.schedule.scheduler)
        for name, stream in run.streams.by_name.items():
            trainer.track(**{f"stream_{name}": stream})
        if run.data.evaluation is not None:
            trainer.track(stream_evaluation=run.data.evaluation)
        trainer.track(
            precision=trainer.precision,
            progress=run.progress,
            history=trainer.run_history,
            losses=run.losses,
            callbacks=trainer.callback_handler,
            random=RandomState(),
            poisoned=run.updater.skipped,
            micro_batches=run.updater.splits,
        )
        if run.updater.gate is not None:
            trainer.track(gate=run.updater.gate)
        if run.metrics.kept:
            trainer.track(train_metrics=run.metrics)

    def warn_untracked(self) -> None:
        """Say which optimizers the trainer keeps that no checkpoint will hold."""
        trainer = self.trainer
        if not trainer.this_run.checkpointer.saves:
            return
        given = list(trainer.optimizers().values())
        for name, value in kept_by(trainer):
            if isinstance(value, Optimizer) and not any(value is one for one in given):
                given.append(value)
                if not trainer.tracked.holds(value):
                    called = name.rpartition(".")[2]
                    trainer.print(
                        f"{called}, of type {type(value).__name__}, is not saved with the run, and begins anew when it "
                        "is resumed; call trainer.track(name=...) with it and with what it trains"
                    )

    # Writing ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run; what all ranks have in common is only in the first one's."""
        everything = self.trainer.processes.is_main
        tracked = self.trainer.tracked.state_dict(None if everything else self._is_written)
        return {**self.facts(), "tracked": tracked}

    def frozen(self) -> set[int]:
        """Return where in the memory of this process the weights lie that nothing trains."""
        weights = [weight.detach() for weight in self.trainer.model.parameters() if not weight.requires_grad]
        if self.trainer.parallel.is_sharded:
            from treadle.parallel.local_shards import local_tensor

            weights = [local_tensor(weight) for weight in weights]
        return {weight.data_ptr() for weight in weights if weight.numel()}

    def of_optimizer(self, optimizer: Optimizer) -> OptimizerState:
        """Return what saves and restores an optimizer, or what is here of one whose weights are sharded."""
        trainer = self.trainer
        if not trainer.parallel.is_sharded:
            return OptimizerState(optimizer, trainer.model)
        # Which pieces are here is known once the model is sharded; where a file is loaded before any run, that is now.
        trainer.this_run.updater.place_model()
        return trainer.parallel.optimizer_state(optimizer)

    def facts(self) -> dict[str, Any]:
        """Return what another run must know of how this one shares out its batches and its weights."""
        now, parallel = self.split(), self.trainer.parallel
        facts = {"sharded": parallel.is_sharded, "data": now.data, "batch_size": now.batch_size}
        return {"processes": now.processes, **facts, "copies": parallel.loss_copies}

    def split(self) -> Split:
        """Return how this run shares out its batches."""
        trainer = self.trainer
        size = None if trainer.run_config is None else trainer.run_config.train_per_device_batch_size
        return Split(trainer.processes.size, trainer.parallel.data_size, size)

    def _is_written(self, name: str) -> bool:
        """Whether a rank other than the first has something to write of what is tracked under `name`."""
        spread = name in ("model", "callbacks", *self.trainer.optimizers())
        return self.is_local(name) or (self.trainer.parallel.is_sharded and spread)

    @staticmethod
    def is_local(name: str) -> bool:
        """Whether what is tracked under `name` differs between ranks."""
        return name in LOCAL or name.startswith("stream_")

    # Reading ------------------------------------------------------------------------------------------------

    def read(self, folder: str | os.PathLike[str]) -> Restored:
        """Return the state that `save_training_state` wrote into a folder."""
        with explaining_mismatch(f"the training state in {folder}"):
            processes = self.trainer.processes
            own = read_training_state(folder, state_file(processes.rank))
            shared = own if processes.is_main else read_training_state(folder, state_file(0))
            # The lines of metrics are in the folder of the run that saved this, which is left alone.
            shared["run"]["tracked"].pop("metrics_file", None)
            return shared["run"], own["run"]

    def read_shared(self, store: CheckpointStore, step: int) -> dict[str, Any]:
        """Return what processes have in common in the checkpoint at `step`; of sharded weights what is needed here."""
        sharded = self.trainer.parallel.is_sharded
        shared: dict[str, Any] = store.read_lazily(step) if sharded else store.read(step, rank=0)
        return shared

    def read_own(self, store: CheckpointStore, step: int, shared: dict[str, Any]) -> dict[str, Any]:
        """Return the state of this process in the checkpoint at `step`, of which `shared` is the first one's.

        Where batches were shared out otherwise, that is the sums of losses of all processes.
        """
        now = self.split()
        then = Split.of_state(shared, now)
        if then == now:
            own: dict[str, Any] = shared if self.trainer.processes.is_main else store.read(step)
            return own
        if then.processes != now.processes or then.data != now.data:
            self.trainer.print(
                f"the run had {then.processes} processes and has {now.processes} now: it continues with the next "
                "samples, but not bit for bit"
            )
        states = [_local_of(store, step, rank, shared) for rank in range(then.processes)]
        metrics = [state["train_metrics"] for state in states if "train_metrics" in state]
        return {"losses": [state["losses"] for state in states], "train_metrics": metrics}

    # Going on -----------------------------------------------------------------------------------------------

    def restore(self, *, partly: bool = False) -> None:
        """Load the state to resume from: once for the start events to see, and again where they may have moved it.

        Args:
            partly: Whether some of what the state is of may still be missing, to be tracked at the start of the run.
        """
        source = self.trainer.settings.resume_from
        if self.restored is None and source is not None and self.began_at is None:
            self.restored = self.read(source)
        if self.restored is not None:
            self.load(*self.restored, partly=partly)

    def load(self, shared: dict[str, Any], own: dict[str, Any], *, partly: bool = False) -> None:
        """Bring everything tracked back: from the first rank's state, and from `own` what is this rank's alone."""
        now = self.split()
        then = Split.of_state(shared, now)
        if then != now:
            self._load_resplit(then, now, shared, own, partly=partly)
            return
        self._load_all(shared, own, partly=partly)

    def _load_resplit(
        self, then: Split, now: Split, shared: dict[str, Any], own: dict[str, Any], *, partly: bool
    ) -> None:
        """Go on with the state of a run that shared out its batches otherwise; `own` knows the sums of all ranks.

        Raises:
            CheckpointError: The state is that of one rank alone, or its place lies inside a batch of now.
        """
        trainer = self.trainer
        if then.batch_size is None and now.batch_size is not None:
            raise CheckpointError(
                "the training state was saved before train() had begun, or of a loader that does not say its batch "
                "size; there is nothing in it to resume from with batches of "
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
                f"{trainer.processes.size}; start as many"
            )
        state = split_anew(shared, then, now)
        copies, mine = int(shared.get("copies", 1)), trainer.parallel.keeps_losses
        tracked = {**state["tracked"], "losses": joined_losses(own["losses"], copies, mine=mine)}
        if own.get("train_metrics"):
            tracked["train_metrics"], lost = joined_metrics(own["train_metrics"], copies, mine=mine)
            if lost:
                trainer.print(f"train_metrics {lost} are no sums, and begin anew on another number of processes")
        self._load_all(state, {**state, "tracked": tracked}, partly=partly)
        if trainer.parallel.data_rank:
            # The first share of the data goes on with its random numbers; the others, new or not, begin with others.
            seed_generators(fold_seed(trainer.this_run.streams.seed, trainer.parallel.data_rank, trainer.progress.step))
            if draws_in_cudnn(trainer.model, trainer.device):
                hold_dropout(trainer.device)

    def _load_all(self, shared: dict[str, Any], own: dict[str, Any], *, partly: bool) -> None:
        trainer = self.trainer
        common = {name: value for name, value in shared["tracked"].items() if not self.is_local(name)}
        mine = {name: value for name, value in own["tracked"].items() if self.is_local(name)}
        state = {**common, **mine}
        # On the first of two loads a callback or a verb may not have tracked its objects yet; the second one takes all.
        surplus = [name for name in state if name not in trainer.tracked.names()] if partly else []
        trainer.tracked.load_state_dict(state, optional=(*OPTIONAL, *surplus))
        if "train_metrics" not in state and trainer.this_run.metrics.kept and trainer.progress.mid_epoch and not partly:
            trainer.print("the run was saved without train_metrics: those of this epoch are over the rest of it")
        for optimizer in trainer.optimizers().values() if trainer.progress.step else ():
            # It made its steps before the run was saved; a schedule that now moves first would complain.
            optimizer._opt_called = True  # type: ignore[attr-defined]
        # Recorded steps read the memory that tensors had; an optimizer that has loaded its state has new ones.
        trainer.this_run.execution.forget()


def state_file(rank: int) -> str:
    """Return the name of the file of a rank in a folder that `save_training_state` writes."""
    return STATE if rank == 0 else f"rank_{rank}.safetensors"


def _local_of(store: CheckpointStore, step: int, rank: int, shared: dict[str, Any]) -> dict[str, Any]:
    state = shared if rank == 0 else store.read(step, rank=rank)
    tracked: dict[str, Any] = state["tracked"]
    return tracked
