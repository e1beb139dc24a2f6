"""The few members of Accelerate's `Accelerator` that users of pytorch-accelerated touch."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import did_you_mean
from treadle.loop.interfaces import RunningTrainer

INSTEAD = {
    "prepare": "the trainer prepares its own model, optimizer and data; use add_stream() for other data, and "
    ".to(trainer.device) for other modules",
    "accumulate": "pass gradient_accumulation_steps= to train()",
    "register_for_checkpointing": "use trainer.track(name=object)",
    "save_state": "use trainer.save_training_state(folder)",
    "load_state": "use trainer.load_training_state(folder)",
    "save": "use trainer.save_checkpoint(path)",
    "init_trackers": "give the trainer a writer, or a callback that logs",
    "log": "use trainer.run_history.update_metric(name, value)",
    "gather_for_metrics": "use trainer.gather(tensor), which counts every sample once",
    "pad_across_processes": "use trainer.gather(tensor, padding_value)",
    "reduce": "use trainer.processes.reduce(values)",
    "free_memory": "leave it out",
    "distributed_type": "use run_config.is_distributed, or num_processes",
    "state": "use num_processes, process_index and device",
}
"""Members of Accelerate's class that are not here, and what to use."""


class AcceleratorFacade:
    """Stands where `trainer._accelerator` used to be; it configures nothing."""

    sync_gradients = True
    """Whether gradients are exchanged; loops of your own have them averaged when an optimizer steps."""
    optimizer_step_was_skipped = False
    """Whether an update was left out; a schedule counts those too, and only the device knows."""

    def __init__(self, trainer: RunningTrainer) -> None:
        self._trainer = trainer
        self._processes = trainer.processes

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` ask every object for such names, and want a plain no.
        if name.startswith("__"):
            raise AttributeError(name)
        known = [one for one in dir(type(self)) if not one.startswith("_")]
        hint = f"; {INSTEAD[name]}" if name in INSTEAD else did_you_mean(name, known)
        raise AttributeError(
            f"trainer._accelerator has no {name!r}: it is a stand-in for Accelerate's, with {', '.join(known)}{hint}"
        )

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self._processes.device

    @property
    def num_processes(self) -> int:
        """How many processes train together."""
        return self._processes.size

    @property
    def process_index(self) -> int:
        """The rank of this process."""
        return self._processes.rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is the first process of all."""
        return self._processes.is_main

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of its machine."""
        return self._processes.is_local_main

    @property
    def mixed_precision(self) -> str:
        """The format of forward and backward passes; "no" for single precision."""
        kind = self._trainer.precision.kind
        return "no" if kind == "fp32" else kind

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context for a forward pass in the trainer's precision."""
        return self._trainer.precision.autocast()

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add the gradient of `loss`, as the trainer's own `backward_step` does."""
        self._trainer.this_run.updater.add_gradient(loss)

    def clip_grad_norm_(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Bound the norm of the gradients of `parameters`, and return what it was."""
        held = self._ready_to_clip(parameters)
        return torch.nn.utils.clip_grad_norm_(held, max_norm, norm_type=norm_type)

    def clip_grad_value_(self, parameters: Iterable[Tensor], clip_value: float) -> None:
        """Bound every number of the gradients of `parameters`."""
        torch.nn.utils.clip_grad_value_(self._ready_to_clip(parameters), clip_value)

    def _ready_to_clip(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        held = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        for optimizer in self._trainer.optimizers().values():
            # The bound is for averaged, unscaled gradients; to average them once more at the step changes nothing.
            self._trainer.this_run.updater.complete_gradients(optimizer, held)
        return held

    def no_sync(self, model: Any = None) -> AbstractContextManager[None]:
        """Return a context that does nothing: in loops of your own gradients are exchanged when an optimizer steps."""
        return nullcontext()

    def join_uneven_inputs(self, joinables: Any, even_batches: bool | None = None) -> AbstractContextManager[None]:
        """Return a context that does nothing: in an evaluation no process waits for the batches of another."""
        return nullcontext()

    def unwrap_model(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        """Return the user's own module; Treadle's trainer never wraps it in place."""
        return getattr(model, "module", model) if isinstance(model, nn.parallel.DistributedDataParallel) else model

    def wait_for_everyone(self) -> None:
        """Wait until every process has come here."""
        self._processes.barrier()

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the rows of `tensor` from every process."""
        return self._processes.gather(tensor)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of each machine."""
        if self._processes.is_local_main:
            print(*args, **kwargs)  # noqa: T201 - printing is what it is for
