"""A model that is cut into modules: who takes what of a batch, and the part of it that one stage is."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import DataError
from treadle.memory.activation_checkpointing import buffers_set_aside
from treadle.parallel.pipeline.loss import Entry

PREFIX = "batch_"
"""What arguments of a batch are called on their way through torch's schedule, which has arguments of its own."""


def prefixed(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a batch under the names by which a stage takes them."""
    return {f"{PREFIX}{name}": value for name, value in batch.items()}


def forward_parameters(module: nn.Module) -> list[inspect.Parameter]:
    """Return what the `forward` of a module takes, in order."""
    # Of the class: activations that are computed again put another `forward` into the module.
    return list(inspect.signature(type(module).forward).parameters.values())[1:]


def names_taken(part: nn.Module, *, first: bool = False) -> frozenset[str] | None:
    """Return the arguments of a batch that a module takes by name: all but the first, which is handed on to it.

    >>> names_taken(nn.Bilinear(1, 1, 1)), names_taken(nn.Linear(1, 1)), names_taken(nn.Linear(1, 1), first=True)
    (frozenset({'input2'}), frozenset(), frozenset({'input'}))

    Args:
        part: The module.
        first: Whether nothing is handed on to it.

    Returns:
        Their names; None if it takes any.
    """
    parameters = forward_parameters(part)[0 if first else 1 :]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL)


def chosen(batch: Mapping[str, Any], names: frozenset[str] | None) -> dict[str, Any]:
    """Return those arguments of a batch that are named; all of them where None stands for any."""
    return {name: value for name, value in batch.items() if names is None or name in names}


def named_arguments(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of `model` by the names that its `forward` has for them.

    Raises:
        DataError: There are more than it takes.
    """
    if not args:
        return dict(kwargs)
    names = [parameter.name for parameter in forward_parameters(model)]
    if len(args) > len(names):
        raise DataError(f"a batch has {len(args)} parts, but {type(model).__name__}.forward takes {names}")
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def enters_first(model: nn.Module, first: nn.Module) -> str | None:
    """Return the argument of a model that is handed to its first module, whatever that calls it.

    Returns:
        The model's first one; None if the first module has a name of the model's for its own first argument.
    """
    of_model = [parameter.name for parameter in forward_parameters(model)]
    own = forward_parameters(first)[:1]
    return None if not of_model or (own and own[0].name in of_model) else of_model[0]


class Stage(nn.Module):
    """Some modules, called one after the other, each with those arguments of the batch that its `forward` names.

    Args:
        parts: The modules.
        first: Whether the first of them is where data comes in, by name if not by position.
    """

    def __init__(self, parts: Sequence[nn.Module], *, first: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.names = [names_taken(part) for part in parts]
        self.entry = names_taken(parts[0], first=True) if first else frozenset()
        self._first = first
        self._asked_for_shapes = False
        self._of_shapes: list[Tensor] = []

    def expect_shapes(self) -> None:
        """Take the next call for the one by which torch finds out what shapes stages send each other."""
        self._asked_for_shapes = True

    def is_of_shapes(self, hidden: Tensor) -> bool:
        """Whether `hidden` came of that call, and says nothing."""
        return any(hidden is one for one in self._of_shapes)

    def end_of_shapes(self) -> None:
        """Let go of what came of that call."""
        self._asked_for_shapes = False
        self._of_shapes.clear()

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return what the last module makes of what the first one is given."""
        batch = {name.removeprefix(PREFIX): value for name, value in kwargs.items()}
        if not self._asked_for_shapes:
            return self._through(args, batch)
        self._asked_for_shapes = False
        # Torch hands on memory as it finds it, which would reach running means, and may hold numbers that raise.
        args = args if self._first else tuple(map(_zeroed, args))
        with buffers_set_aside(self):
            found = self._through(args, batch)
        self._of_shapes.append(found)
        return found

    def _through(self, args: tuple[Any, ...], batch: Mapping[str, Any]) -> Tensor:
        for part, names in zip(self.parts, self.names, strict=True):
            args = (part(*args, **chosen(batch, names if args else self.entry)),)
        result: Tensor = args[0]
        return result


def _zeroed(arg: Tensor) -> Tensor:
    """Return zeros that depend on a tensor as far as gradients are concerned, whatever its numbers are."""
    return torch.where(torch.zeros_like(arg, dtype=torch.bool), arg, torch.zeros_like(arg))


def joined(parts: Sequence[nn.Module]) -> list[nn.Module]:
    """Return modules that follow each other, as one where they can be: where the first has a `joined` for the last."""
    join = getattr(parts[0], "joined", None) if parts else None
    return list(parts) if join is None else [join(parts[-1])]


class Cut:
    """A model in modules, and those of them that are here.

    Args:
        model: The model.
        parts: The modules that data goes through.
        own: The stage of this rank.

    Attributes:
        own: The stage of this rank.
        last: The module at the end.
    """

    def __init__(self, model: nn.Module, parts: Sequence[nn.Module], own: Stage) -> None:
        self.own, self.last = own, parts[-1]
        self._names = [names_taken(part) for part in parts[:-1]]
        self._entry, self._handed = names_taken(parts[0], first=True), enters_first(model, parts[0])
        inside = {id(module) for module in model.modules()}
        self._wrappers = [module for part in (own, *parts) for module in part.modules() if id(module) not in inside]

    def follow(self, model: nn.Module) -> None:
        """Have modules that the model made only to be cut, and does not hold, be in its mode."""
        for module in self._wrappers:
            module.training = model.training

    def route(self, named: Mapping[str, Any]) -> Entry:
        """Return what arguments of the model are to its modules: each goes to those that name it."""
        ending = chosen(named, names_taken(self.last))
        handed = self._handed
        if handed is None or handed not in named:
            return Entry((), dict(named), ending)
        kwargs = {name: value for name, value in named.items() if name != handed or _is_taken(name, self._names)}
        return Entry((named[handed],), kwargs, ending)

    def own_arguments(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a batch that some module of this rank takes."""
        return {name: value for name, value in batch.items() if _is_taken(name, [*self.own.names, self.own.entry])}

    def require_taken(self, entry: Entry) -> None:
        """Refuse a batch with something that no module takes.

        Raises:
            DataError: There is such a thing.
        """
        taken = self._names if entry.args else [*self._names, self._entry]
        idle = [name for name in entry.kwargs if name not in entry.ending and not _is_taken(name, taken)]
        if idle:
            raise DataError(
                f"Plan: pipeline: the batch has {idle}, which no module of pipeline_blocks() takes; name it among the "
                "arguments of the forward that needs it, or leave it out of the batch"
            )


def _is_taken(name: str, names: Sequence[frozenset[str] | None]) -> bool:
    return any(taken is None or name in taken for taken in names)
