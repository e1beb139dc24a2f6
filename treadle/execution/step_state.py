"""What an update may change: the tensors, and the objects whose attributes a user's step may set."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from treadle.execution.cuda_graph.replay_check import tensors_in
from treadle.runs.interfaces import TrainerLike

ON_THE_HOST = frozenset(
    {"progress", "history", "losses", "random", "poisoned", "micro_batches", "metrics_file", "execution"}
)
"""What is tracked and no step changes."""
LIBRARIES = frozenset({"treadle", "torch", "torchmetrics", "builtins", "collections", "functools", "numpy", "pathlib"})
"""Where the objects come from that no step of a user's counts in."""


def tensors_of(trainer: TrainerLike, changing: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return every tensor that a step may change, by name, each once.

    Args:
        trainer: Whose step it is.
        changing: Attributes that are known to change in place.
    """
    tracked = trainer.tracked.state_dict(lambda name: name not in ON_THE_HOST and not name.startswith("stream_"))
    found = {**(changing or {}), **dict(tensors_in(tracked)), **dict(_tensors_in_model(trainer.model))}
    found |= dict(tensors_in({"scaler": _scaler_of(trainer), "gate": _gate_of(trainer)}))
    # A sparse tensor is a constant, such as the edges of a graph.
    dense = {name: tensor for name, tensor in found.items() if tensor.layout == torch.strided}
    once = {(tensor.data_ptr(), tensor.numel()): name for name, tensor in dense.items()}
    return {name: found[name] for name in once.values()}


def owners_of(trainer: TrainerLike) -> dict[str, object]:
    """Return the objects that a user's step may change, by name."""
    owners: dict[str, object] = {"trainer": trainer, "model": trainer.model, "loss_func": trainer.loss_func}
    # Metrics are modules, and count their updates in Python.
    for name, value in vars(trainer).items():
        if isinstance(value, nn.Module) and not any(value is one for one in owners.values()):
            owners[f"trainer.{name}"] = value
    if trainer.this_run.metrics.kept:
        owners |= {f"train_metrics[{name!r}]": one for name, one in trainer.this_run.metrics.modules().items()}
    return owners


def all_owners_of(trainer: TrainerLike) -> dict[str, object]:
    """Return these, and objects of a user's own classes that the trainer keeps, such as one that counts its calls."""
    return owners_of(trainer) | {
        f"trainer.{name}": value
        for name, value in vars(trainer).items()
        if hasattr(value, "__dict__") and type(value).__module__.partition(".")[0] not in LIBRARIES
    }


def _tensors_in_model(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield f"model.{name}", tensor.detach()


def _scaler_of(trainer: TrainerLike) -> list[Any]:
    scaler = trainer.precision.scaler
    return [] if scaler is None else scaler.tensors()


def _gate_of(trainer: TrainerLike) -> list[Any]:
    gate = trainer.this_run.updater.gate
    return [] if gate is None else gate.tensors()
