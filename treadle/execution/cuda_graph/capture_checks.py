"""What a step does on the host, besides its work on the device: a replay would not do it again."""

import random
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from treadle.callback import MICRO_BATCH_EVENTS, listens
from treadle.errors import CaptureError
from treadle.execution.cuda_graph.capture_errors import callers_line
from treadle.execution.cuda_graph.inputs import CONSTANTS, leaves
from treadle.optim.combined import member_optimizers
from treadle.optim.muon import is_muon
from treadle.runs.interfaces import TrainerLike

if TYPE_CHECKING:
    from treadle.phase import Phase

# What is known to be impossible to record, before anything is tried


def refuse_run(trainer: TrainerLike) -> None:
    """Refuse a run whose settings or callbacks rule a recording out, whatever its steps are.

    Raises:
        CaptureError: They do; it says which, and what to do.
    """
    active = trainer.callback_handler.active
    listening = [one for one in active if any(listens(one, event) for event in MICRO_BATCH_EVENTS)]
    if listening:
        names = ", ".join(type(callback).__name__ for callback in listening)
        raise CaptureError(f"{names} acts on every micro-batch, which a replay does not stop at; use on_update_end")
    if trainer.processes.distributed:
        raise CaptureError("with several processes gradients are exchanged inside of the step; use one process")
    if trainer.spec.microbatch == "auto":
        raise CaptureError("microbatch='auto' changes the shape of a step; find it with execution='eager' first")
    if trainer.spec.offload_optimizer:
        raise CaptureError("offload_optimizer=True brings state from the host in every step; leave it out")


def refuse_window(phase: "Phase", window: list[Any]) -> None:
    """Refuse a window whose phase or data rules a recording out; other windows of the run may be none of that kind.

    Raises:
        CaptureError: They do; it says which, and what to do.
    """
    if not phase.draws:
        raise CaptureError("a step of your own draws its data itself; leave that to the trainer")
    for leaf in leaves(window):
        if not isinstance(leaf, (Tensor, *CONSTANTS)):
            raise CaptureError(f"a batch holds a {type(leaf).__name__}; give tensors in tuples, lists and dicts")


def refuse_optimizer(optimizer: Optimizer, *, moves: bool) -> None:
    """Refuse an optimizer that needs the host in each of its steps.

    Args:
        optimizer: An optimizer that has made its state.
        moves: Whether its learning rates move at every step.

    Raises:
        CaptureError: It does; it says for what.
    """
    for member in member_optimizers(optimizer):
        _refuse_member(member, moves=moves)


def _refuse_member(optimizer: Optimizer, *, moves: bool) -> None:
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            elsewhere = isinstance(value, Tensor) and value.device != parameter.device
            if elsewhere or isinstance(value, (bool, int, float)):
                raise CaptureError(
                    f"{type(optimizer).__name__} keeps {name!r} on the host, where no replay changes it; use an "
                    "optimizer that counts on the device, such as AdamW, Adam, SGD or RMSprop"
                )
    if moves and type(optimizer) is SGD and not all(group["fused"] for group in optimizer.param_groups):
        raise CaptureError("SGD reads its learning rate on the host unless fused=True; a schedule by steps moves it")
    if moves and is_muon(optimizer):
        raise CaptureError("Muon reads its learning rate on the host, and a schedule by steps moves it; use 'compile'")


PLAIN = (bool, int, float, complex, str, bytes, type(None))
CONTAINERS = (list, tuple, set, frozenset, dict, deque)
MUTABLE = (list, set, dict, deque)
MOST_ITEMS = 1000
"""Of a container with more items, such as a list of all samples, what these hold is not looked into."""
LARGEST_ARRAY = 2**20
"""So many elements an array of NumPy's may have to be copied."""
VALUES = (*PLAIN, *CONTAINERS, Tensor, np.ndarray)


class ReadNever:
    """Stands in for something that changes from step to step, while a step is recorded.

    Args:
        name: What it stands for.
        allowed: Attributes that may be read all the same, with their values.
    """

    def __init__(self, name: str, **allowed: Any) -> None:
        self.__dict__.update(allowed, _name=name)

    def __getattr__(self, attribute: str) -> Any:
        raise CaptureError(
            f"the step reads {self._name}.{attribute} {callers_line()}; a replay would see the same value for ever. "
            "Keep it in a tensor on the device that on_update_start or a method of the epoch changes in place"
        )


def find_generators(*owners: object) -> list[torch.Generator]:
    """Return the CUDA generators that `owners`, and the modules in them, hold as attributes."""
    objects = [part for owner in owners for part in (owner.modules() if isinstance(owner, nn.Module) else [owner])]
    values = [value for one in objects for value in getattr(one, "__dict__", {}).values()]
    found = [value for value in values if isinstance(value, torch.Generator) and value.device.type == "cuda"]
    return list({id(generator): generator for generator in found}.values())


@contextmanager
def no_host_randomness(device: torch.device) -> Iterator[None]:
    """Refuse a step that draws from a generator of the host instead of that of `device`.

    Raises:
        CaptureError: It did.
    """
    before = _host_generators(device)
    yield
    for name, state in _host_generators(device).items():
        if state != before[name]:
            raise CaptureError(
                f"the step draws from {name}'s generator on the host; a replay would use the same numbers for ever. "
                "Draw on the device: torch.rand(..., device=inputs.device)"
            )


def _host_generators(device: torch.device) -> dict[str, Any]:
    numpy: Any = np.random.get_state()
    return {
        "Python": random.getstate(),
        "NumPy": (numpy[0], bytes(np.asarray(numpy[1])), numpy[2:]),
        "torch": None if device.type == "cpu" else bytes(torch.get_rng_state().numpy()),
    }


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an object keeps an attribute, and what it was."""

    home: dict[str, Any]
    key: str
    value: Any
    mark: Any
    contents: Any


class Attributes:
    """What the attributes of some objects were, to find out what a step changed in them, and to put it back.

    Args:
        owners: The objects, by the name to use in messages; of a module its parts too.
    """

    def __init__(self, owners: Mapping[str, object]) -> None:
        self._owners = owners
        # The values are kept, so that no new object can be taken for an old one.
        self._before = {
            name: _Place(home, key, home[key], _mark(home[key]), list(_mutable_contents(home[key])))
            for name, home, key in places_of(owners)
        }

    def changed(self) -> dict[str, Any]:
        """Return the marks of what is no longer as it was, by name."""
        now = {name: _mark(home[key]) for name, home, key in places_of(self._owners)}
        names = [name for name in now if name not in self._before or not _same(self._before[name].mark, now[name])]
        return {name: now[name] for name in names}

    def refuse_changes(self) -> dict[str, Tensor]:
        """Refuse what a replay would leave out; return tensors that were put anew, which may be harmless.

        Raises:
            CaptureError: A number or a container changed.
        """
        changed = self.changed()
        for name, mark in changed.items():
            if not isinstance(mark, Tensor):
                raise CaptureError(
                    f"the step changes {name}; a replay runs no Python, so it would stay as it is. Do it in "
                    "on_update_end, or keep it in a tensor on the device that is changed in place"
                )
        return changed

    def undo(self) -> None:
        """Put numbers, tensors and the contents of containers back, after steps that were only tried."""
        for name, home, key in list(places_of(self._owners)):
            # What the compiler notes on a module has to stay.
            if name not in self._before and isinstance(home[key], VALUES) and not key.startswith("_"):
                del home[key]
        for place in self._before.values():
            if isinstance(place.value, VALUES):
                place.home[place.key] = place.value
            for container, contents in place.contents:
                _refill(container, contents)


class MovingTensors:
    """Finds the attributes that are tensors and change in place from window to window."""

    def __init__(self) -> None:
        self._versions: dict[str, tuple[int, int]] = {}

    def look(self, owners: Mapping[str, object]) -> dict[str, Tensor]:
        """Return, by name, those that changed since the last look."""
        values = {name: home[key] for name, home, key in places_of(owners)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor) and is_counted(value)}
        before, self._versions = self._versions, {name: (id(one), one._version) for name, one in tensors.items()}
        return {
            name: one
            for name, one in tensors.items()
            if name in before and before[name][0] == id(one) and before[name] != self._versions[name]
        }


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses an operation that reads one of some tensors.

    Args:
        tensors: By the name to use in messages.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {tensor.untyped_storage()._cdata: name for name, tensor in tensors.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the arguments, then do what was asked."""
        for value in tree_iter((args, kwargs or {})):
            if isinstance(value, Tensor) and value.layout == torch.strided:
                name = self._names.get(value.untyped_storage()._cdata)
                if name is not None:
                    raise CaptureError(
                        f"the step reads {name} and then puts a new tensor in its place; a replay would read the "
                        f"first one for ever. Change it in place: {name.rpartition('.')[2]}.copy_(...)"
                    )
        return func(*args, **(kwargs or {}))


def places_of(owners: Mapping[str, object]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the attributes of objects: a name for messages, the dict that holds it, and its key there."""
    for label, owner in owners.items():
        if isinstance(owner, nn.Module):
            yield from _places_in(label, owner)
            continue
        home = getattr(owner, "__dict__", {})
        yield from ((f"{label}.{key}", home, key) for key in list(home))


def _places_in(label: str, model: nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    for prefix, module in model.named_modules():
        path = f"{label}.{prefix}" if prefix else label
        homes: tuple[dict[str, Any], ...] = (vars(module), module._buffers)
        for home in homes:
            for key, value in list(home.items()):
                if key not in _MODULE and not isinstance(value, nn.Parameter):
                    yield f"{path}.{key}", home, key


def is_counted(tensor: Tensor) -> bool:
    """Whether torch counts the changes of a tensor, and they can be undone."""
    return tensor.layout == torch.strided and not tensor.is_inference()


_MODULE = frozenset(vars(nn.Module()))


def _mutable_contents(value: Any, depth: int = 4) -> Iterator[tuple[Any, Any]]:
    """Yield the containers and arrays in a value that can change, each with a copy of what is in it."""
    if isinstance(value, np.ndarray):
        # A file in memory may be larger than memory is, and what nobody can write to did not change.
        if value.flags.writeable and value.size <= LARGEST_ARRAY and not isinstance(value, np.memmap):
            yield value, value.copy()
        return
    if not isinstance(value, CONTAINERS):
        return
    items = list(value.values() if isinstance(value, dict) else value)
    if isinstance(value, MUTABLE):
        yield value, dict(value) if isinstance(value, dict) else items
    for item in items if depth and len(items) <= MOST_ITEMS else ():
        if isinstance(item, (*CONTAINERS, np.ndarray)):
            yield from _mutable_contents(item, depth - 1)


def _refill(container: Any, contents: Any) -> None:
    if isinstance(container, np.ndarray):
        container[...] = contents
        return
    container.clear()
    (container.extend if isinstance(container, (list, deque)) else container.update)(contents)


def _mark(value: Any, depth: int = 2) -> Any:
    if isinstance(value, (*PLAIN, Tensor)):
        return value
    if isinstance(value, CONTAINERS):
        ends = list(value.items() if isinstance(value, dict) else value)
        inner = tuple(_mark(item, depth - 1) for item in (*ends[:2], *ends[-2:])) if depth else ()
        return (type(value), len(ends), inner)
    return _Object(value)


class _Object:
    """An object that is the same only if it is the very same."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, Tensor) or isinstance(new, Tensor):
        return old is new
    if isinstance(old, _Object) and isinstance(new, _Object):
        return old.value is new.value
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(map(_same, old, new))
    return type(old) is type(new) and (old == new or (old != old and new != new))
