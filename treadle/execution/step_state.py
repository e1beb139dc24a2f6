"""What an update may change: the tensors, and the objects whose attributes a user's step may set."""

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from treadle.execution.cuda_graph.capture_checks import Attributes, is_counted, places_of
from treadle.execution.cuda_graph.replay_check import tensors_in
from treadle.runs.interfaces import TrainerLike

ON_THE_HOST = frozenset(
    {"progress", "history", "losses", "random", "poisoned", "micro_batches", "metrics_file", "execution"}
)
"""What is tracked and no step changes."""
LIBRARIES = frozenset({"treadle", "torch", "torchmetrics", "builtins", "collections", "functools", "numpy", "pathlib"})
"""Where the objects come from that no step of a user's counts in."""
MOST_OBJECTS, DEPTH = 1000, 3
"""How many objects of a user's are looked at, and how far from the trainer or the model."""
SMALL = 2**16
"""A tensor of so many elements is copied wherever it is kept: one that changes now and then may not have so far."""


def step_tensors(trainer: TrainerLike, changing: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return every tensor that a step may change, by name, each once.

    Args:
        trainer: Whose step it is.
        changing: Attributes that are known to change in place.
    """
    tracked = trainer.tracked.state_dict(lambda name: name not in ON_THE_HOST and not name.startswith("stream_"))
    found = {**(changing or {}), **dict(tensors_in(tracked)), **dict(_tensors_in_model(trainer.model))}
    found |= dict(tensors_in({"scaler": _loss_scaler(trainer), "gate": _finite_guard(trainer)}))
    # A sparse tensor is a constant, such as the edges of a graph.
    dense = {name: tensor for name, tensor in found.items() if tensor.layout == torch.strided}
    once = {(tensor.data_ptr(), tensor.numel()): name for name, tensor in dense.items()}
    return {name: found[name] for name in once.values()}


def state_owners(trainer: TrainerLike) -> dict[str, object]:
    """Return the objects that a user's step may change, by name."""
    owners: dict[str, object] = {"trainer": trainer, "model": trainer.model, "loss_func": trainer.loss_func}
    # Metrics are modules, and count their updates in Python.
    for name, value in vars(trainer).items():
        if isinstance(value, nn.Module) and not any(value is one for one in owners.values()):
            owners[f"trainer.{name}"] = value
    if trainer.this_run.metrics.kept:
        owners |= {f"train_metrics[{name!r}]": one for name, one in trainer.this_run.metrics.modules().items()}
    return owners


def all_state_owners(trainer: TrainerLike) -> dict[str, object]:
    """Return these, and objects of a user's own classes that are kept there, such as one that counts its calls."""
    found = state_owners(trainer)
    for name, value in vars(trainer).items():
        if hasattr(value, "__dict__") and _package_of(value) not in LIBRARIES:
            found[f"trainer.{name}"] = value
    own = {_package_of(part) for one in list(found.values()) for part in _parts_of(one)} - LIBRARIES
    seen, level = {id(one) for one in found.values()}, dict(found)
    for _ in range(DEPTH):
        level = {
            name: value
            for place, owner in level.items()
            for name, value in _kept_by(place, owner)
            if _package_of(value) in own and not isinstance(value, nn.Module) and id(value) not in seen
        }
        # One that is kept twice is one.
        level = dict({id(value): (name, value) for name, value in level.items()}.values())
        seen |= set(map(id, level.values()))
        if len(found) + len(level) > MOST_OBJECTS:
            break
        found |= level
    return found


def _package_of(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def _parts_of(owner: object) -> Iterable[object]:
    return owner.modules() if isinstance(owner, nn.Module) else (owner,)


def _kept_by(name: str, owner: object) -> Iterator[tuple[str, Any]]:
    """Yield the objects that an owner keeps in attributes, lists, tuples and dicts, by name."""
    for place, home, key in places_of({name: owner}):
        value = home[key]
        items: dict[Any, Any] = {}
        if isinstance(value, (list, tuple, dict)) and len(value) <= MOST_OBJECTS:
            items = value if isinstance(value, dict) else dict(enumerate(value))
        named = {place: value, **{f"{place}.{item}": one for item, one in items.items()}}
        yield from ((where, one) for where, one in named.items() if hasattr(one, "__dict__"))


def _small_tensors_in(owners: Mapping[str, object]) -> list[tuple[Tensor, int, Tensor]]:
    """Return the small tensors among the attributes of some objects, with how often they changed, and copies."""
    values = [home[key] for _, home, key in places_of(owners)]
    tensors = [one for one in values if isinstance(one, Tensor) and is_counted(one) and one.numel() <= SMALL]
    return [(one, one._version, one.detach().clone()) for one in tensors]


@contextmanager
def host_kept(trainer: TrainerLike) -> Iterator[None]:
    """Put back after the block what a step changes on the host: attributes, generators, and gradients.

    Of generators those that the trainer, the model and objects of a user's keep, and those of the user's own modules;
    the global ones are kept with the tensors. Gradients there are between two updates where a verb of the user's leaves
    them for the next one.
    """
    owners = all_state_owners(trainer)
    attributes, restores = Attributes(owners), list(map(_restore_of, _generators_in(owners)))
    tensors = _small_tensors_in(owners)
    gradients = [(one, one.grad, one.grad.clone()) for one in trainer.model.parameters() if one.grad is not None]
    try:
        yield
    finally:
        attributes.undo()
        for restore in restores:
            restore()
        for tensor, version, copy in tensors:
            # What did not change may be memory that nobody can write to.
            if tensor._version != version:
                tensor.detach().copy_(copy)
        for parameter, gradient, before in gradients:
            parameter.grad = gradient.copy_(before)


def _generators_in(owners: Mapping[str, object]) -> list[Any]:
    modules = {type(part).__module__ for one in owners.values() for part in _parts_of(one)}
    own = [
        vars(sys.modules[name]) for name in modules if name.partition(".")[0] not in LIBRARIES and name in sys.modules
    ]
    kept = [home[key] for _, home, key in places_of(owners)] + [value for names in own for value in names.values()]
    return [one for one in {id(one): one for one in kept}.values() if isinstance(one, GENERATORS)]


GENERATORS = (torch.Generator, random.Random, np.random.RandomState, np.random.Generator)


def _restore_of(generator: Any) -> Callable[[], object]:
    """Return what puts a generator of the host back into its state of now."""
    if isinstance(generator, torch.Generator):
        # Those of a device are kept with the tensors.
        state = generator.get_state() if generator.device.type == "cpu" else None
        return (lambda: None) if state is None else lambda: generator.set_state(state)
    if isinstance(generator, random.Random):
        # A source without a state, such as SystemRandom, has nothing to put back.
        python = None if isinstance(generator, random.SystemRandom) else generator.getstate()
        return (lambda: None) if python is None else lambda: generator.setstate(python)
    if isinstance(generator, np.random.RandomState):
        legacy = generator.get_state(legacy=False)
        return lambda: generator.set_state(legacy)
    bits, numpy = generator.bit_generator, deepcopy(generator.bit_generator.state)
    return lambda: setattr(bits, "state", numpy)


def _tensors_in_model(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield f"model.{name}", tensor.detach()


def _loss_scaler(trainer: TrainerLike) -> list[Any]:
    scaler = trainer.precision.scaler
    return [] if scaler is None else scaler.tensors()


def _finite_guard(trainer: TrainerLike) -> list[Any]:
    gate = trainer.this_run.updater.gate
    return [] if gate is None else gate.tensors()
