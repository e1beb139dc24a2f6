"""A table of a model: its layers, what they put out, and how many parameters are trained."""

import copy
import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from treadle.console.lines import counted
from treadle.data.batch import map_leaves
from treadle.errors import ConfigError
from treadle.runs.html_table import html_table

COLUMNS = ("layer", "type", "output", "parameters", "trained")
WIDEST = 44
"""Characters of a column; longer names lose their middle."""
OWN_HOOKS = ("torch.nn.", "torch.ao.")
"""Where hooks come from that layers need to compute what they do, such as those of weight norm and of lazy layers."""


@dataclass(frozen=True)
class Layer:
    """A row of the table.

    Attributes:
        name: Its name in the model; empty for the model itself.
        kind: Its class.
        output: The shape of what it put out first; empty if it was not called.
        calls: How often it was called.
        trained: The parameters that are counted here and are trained.
        frozen: Those that are not.
    """

    name: str
    kind: str
    output: str
    calls: int
    trained: int
    frozen: int

    @property
    def parameters(self) -> int:
        """All parameters that are counted here."""
        return self.trained + self.frozen


@dataclass(frozen=True)
class ModelSummary:
    """What `summary` returns: it shows itself as a table, in a terminal and in a notebook.

    Attributes:
        model: The class of the model.
        layers: The rows; each parameter is counted in one of them.
        trained: The parameters that require a gradient.
        frozen: Those that do not.
        buffers: The numbers in buffers.
        size: The bytes of parameters and buffers.
    """

    model: str
    layers: tuple[Layer, ...]
    trained: int
    frozen: int
    buffers: int
    size: int

    def __str__(self) -> str:
        """Return the table as text."""
        rows = [COLUMNS, *(_cells(layer) for layer in self.layers)]
        widths = [min(WIDEST, max(len(row[place]) for row in rows)) for place in range(len(COLUMNS))]
        lines = [_line(row, widths) for row in rows]
        rule = "-" * max(map(len, lines))
        return "\n".join([self.model, rule, lines[0], rule, *lines[1:], rule, self.totals])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(COLUMNS, map(_cells, self.layers), self.model) + f"<p>{self.totals}</p>"

    @property
    def totals(self) -> str:
        """What the rows come to, in a line."""
        parts = [counted(self.trained + self.frozen, "parameter"), f"{self.trained:,} trained"]
        parts += [f"{self.frozen:,} frozen"] if self.frozen else []
        parts += [f"{self.buffers:,} in buffers"] if self.buffers else []
        return ", ".join([*parts, f"{self.size / 2**20:.2f} MiB"])


def _cells(layer: Layer) -> tuple[str, ...]:
    calls = f" x{layer.calls}" if layer.calls > 1 else ""
    trained = (
        "" if not layer.parameters else "yes" if not layer.frozen else f"{layer.trained:,}" if layer.trained else "no"
    )
    count = f"{layer.parameters:,}" if layer.parameters else ""
    return layer.name or "(model)", layer.kind, layer.output + calls, count, trained


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    shown = [cell if len(cell) <= WIDEST else f"{cell[: WIDEST // 2 - 1]}..{cell[1 - WIDEST // 2 :]}" for cell in cells]
    aligned = [
        cell.rjust(width) if column == "parameters" else cell.ljust(width)
        for cell, width, column in zip(shown, widths, COLUMNS, strict=True)
    ]
    return "  ".join(aligned).rstrip()


def summary(model: nn.Module, batch: Any = None, *, depth: int = 3) -> ModelSummary:
    """Return a table of a model: layers, shapes of their outputs, parameters, and which of them are trained.

    The model is left as it is: a copy is called, in evaluation mode, on tensors that have a shape and no values. A
    model that looks at values is called as it is, in a copy as well; no generator of random numbers moves.

    >>> print(summary(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(16, 4)))
    Sequential
    -------------------------------------------
    layer  type    output   parameters  trained
    -------------------------------------------
    0      Linear  [16, 8]          40  yes
    1      ReLU    [16, 8]
    2      Linear  [16, 2]          18  yes
    -------------------------------------------
    58 parameters, 58 trained, 0.00 MiB

    Args:
        model: The model, on any device, "meta" among them.
        batch: What it is called with, as a loader gives it: a tensor, a mapping of its arguments, or a tuple of which
            it takes the first ones. Without it there are no shapes.
        depth: How deep modules inside of modules have rows of their own.

    Raises:
        ConfigError: The model cannot be called with the batch, or an argument has no sense.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"summary takes a model, an nn.Module, and not a {type(model).__name__}")
    if type(depth) is not int or depth < 1:
        raise ConfigError(f"summary: depth={depth!r} must be a whole number of at least 1")
    inner = getattr(model, "_orig_mod", model)
    seen, shapes = (inner, {}) if batch is None else _called(inner, batch)
    parameters = {id(one): one for one in seen.parameters() if not is_lazy(one)}.values()
    buffers = {id(one): one for one in seen.buffers() if not is_lazy(one)}.values()
    trained = sum(one.numel() for one in parameters if one.requires_grad)
    return ModelSummary(
        model=type(inner).__name__,
        layers=tuple(_layers(seen, shapes, depth)),
        trained=trained,
        frozen=sum(one.numel() for one in parameters) - trained,
        buffers=sum(one.numel() for one in buffers),
        size=sum(one.numel() * one.element_size() for one in (*parameters, *buffers)),
    )


# Rows


Shapes = dict[str, tuple[str, int]]
"""What modules put out first, by their names, and how often they were called."""


def _layers(model: nn.Module, shapes: Shapes, depth: int) -> Iterator[Layer]:
    """Yield the rows: modules that hold no other, those at the depth, and those with parameters of their own."""
    counted_already: set[int] = set()
    for name, module in model.named_modules():
        level = name.count(".") + 1 if name else 0
        if level > depth:
            continue
        folds = level == depth or next(module.children(), None) is None
        found = [one for one in module.parameters(recurse=folds) if not is_lazy(one)]
        own = {id(one): one for one in found if id(one) not in counted_already}
        counted_already |= set(own)
        if not folds and not own:
            continue
        output, calls = shapes.get(name, ("", 0))
        trained = sum(one.numel() for one in own.values() if one.requires_grad)
        frozen = sum(one.numel() for one in own.values()) - trained
        yield Layer(name, type(module).__name__, output, calls, trained, frozen)


def shape_of(output: Any) -> str:
    """Return the shapes in what a module put out.

    >>> shape_of((torch.zeros(2, 3), {"hidden": torch.zeros(2), "none": None}))
    '([2, 3], {hidden: [2]})'
    """
    if isinstance(output, Tensor):
        return str(list(output.shape))
    if isinstance(output, Mapping):
        inside = {str(key): shape_of(value) for key, value in output.items()}
        return "{" + ", ".join(f"{key}: {shape}" for key, shape in inside.items() if shape) + "}"
    if isinstance(output, (list, tuple)):
        return "(" + ", ".join(filter(None, map(shape_of, output))) + ")"
    return ""


# Calling a copy


def _called(model: nn.Module, batch: Any) -> tuple[nn.Module, Shapes]:
    """Return a copy of a model that was called with a batch, and the shapes that its modules put out."""
    arguments, named = arguments_of(model, batch)
    meta = torch.device("meta")
    try:
        shadow = _copied(model, values=False)
        with meta:
            return shadow, _shapes(shadow, map_leaves(partial(_moved, meta), arguments), _moved_values(meta, named))
    except Exception as without_values:  # it looks at values, or makes tensors on a device of its own
        try:
            whole = _copied(model, values=True)
            device = next((one.device for one in model.parameters()), torch.device("cpu"))
            with generators_kept():
                moved = map_leaves(partial(_moved, device), arguments)
                return whole, _shapes(whole, moved, _moved_values(device, named))
        except Exception as error:
            raise ConfigError(_told(model, batch, error)) from (error if str(error) else without_values)


def _told(model: nn.Module, batch: Any, error: Exception) -> str:
    what = (str(error).splitlines() or [""])[0]
    kind, takes = type(model).__name__, list(inspect.signature(model.forward).parameters)
    keys = f", and the batch has {list(batch)}" if isinstance(batch, Mapping) else ""
    return (
        f"{kind} could not be called with the batch of summary: {type(error).__name__}: {what}; its forward takes "
        f"{takes}{keys}. Give such a batch, or none for a table without shapes"
    )


def _moved(device: torch.device, value: Any) -> Any:
    return value.detach().to(device) if isinstance(value, Tensor) else value


def _moved_values(device: torch.device, named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: map_leaves(partial(_moved, device), value) for name, value in named.items()}


def arguments_of(model: nn.Module, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a model takes of a batch, by position and by name.

    >>> arguments_of(nn.Linear(2, 1), ["inputs", "targets"])
    (('inputs',), {})
    """
    signature = inspect.signature(model.forward)
    if isinstance(batch, Mapping) and _binds(signature, (), dict(batch)):
        return (), dict(batch)
    if isinstance(batch, (list, tuple)):
        for count in range(len(batch), 0, -1):
            if _binds(signature, tuple(batch[:count]), {}):
                return tuple(batch[:count]), {}
    return (batch,), {}


def _binds(signature: inspect.Signature, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    try:
        signature.bind(*arguments, **named)
    except TypeError:
        return False
    return True


def _copied(model: nn.Module, *, values: bool) -> nn.Module:
    """Return a copy of a model in evaluation mode, without the hooks of others; its tensors may be without values."""
    memo: dict[int, Any] = {}
    if not values:
        for parameter in model.parameters():
            memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        for buffer in model.buffers():
            memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    made = copy.deepcopy(model, memo).eval()
    for module in made.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in [key for key, hook in hooks.items() if not _is_of_torch(hook)]:
                del hooks[key]
    return made


def _is_of_torch(hook: Any) -> bool:
    owner = getattr(hook, "__module__", None) or type(hook).__module__
    return str(owner).startswith(OWN_HOOKS)


def _shapes(model: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Shapes:
    found: Shapes = {}

    def note(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        first, calls = found.get(name, (shape_of(output), 0))
        found[name] = first, calls + 1

    handles = [one.register_forward_hook(partial(note, name)) for name, one in model.named_modules()]
    try:
        with torch.no_grad():
            model(*arguments, **named)
    finally:
        for handle in handles:
            handle.remove()
    return found


@contextmanager
def generators_kept() -> Iterator[None]:
    """Let nothing in the block move a generator of random numbers, of torch, NumPy or Python."""
    python, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
