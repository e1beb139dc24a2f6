"""A module whose arguments are to be decided."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.nas.space.choice import Choice
from treadle.nas.space.decisions import Condition
from treadle.nas.space.value_choice import Leaf, Read, assignments, computed, find_expressions
from treadle.nas.space.weight_sharing import SharedWeights, Weigh, find_shared_weights
from treadle.nas.space.weighted_sum import weighted_sum
from treadle.search.assignment import key_of

MOST_VARIANTS = 64
"""How many modules a choice of arguments may stand for where they cannot share their weights."""


class Built(Choice):
    """A module of which some arguments are expressions.

    Linear layers, convolutions and batch norms keep one set of weights, that of the largest; a smaller one uses the
    first channels and the centre of the kernel. Any other class is built once for each combination of its arguments.

    >>> from treadle.nas import ValueChoice
    >>> layer = Built(nn.Linear, 4, ValueChoice([8, 16], label="width"), bias=False)
    >>> layer.shared.weight.shape, layer(torch.zeros(1, 4)).shape
    (torch.Size([16, 4]), torch.Size([1, 8]))

    Args:
        kind: The class of the module, or a function that makes it.
        args: Its arguments; expressions may stand in lists, tuples and dicts of them too.
        kwargs: Its arguments by name.

    Attributes:
        arguments: The arguments by name, with expressions in them.
        sharing: How all sizes use one set of weights; None if each combination has a module of its own.
    """

    def __init__(self, kind: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.kind = kind
        self._name = getattr(kind, "__name__", repr(kind))
        self.arguments = _by_name(kind, self._name, args, kwargs)
        self._open = [name for name, value in self.arguments.items() if find_expressions(value)]
        if not self._open:
            raise ConfigError(f"Built({self._name}): no argument is left open; use {self._name}(...) itself")
        found = {self._key(one): one for _, one in assignments(self.arguments)}
        self._combinations: dict[str, dict[str, Any]] = found
        self.sharing: SharedWeights | None = find_shared_weights(kind, list(found.values()))
        if self.sharing is not None:
            self._modules["shared"] = kind(**self.sharing.largest)
            return
        if len(found) > MOST_VARIANTS:
            raise ConfigError(
                f"Built({self._name}): its arguments have {len(found)} combinations, each a module of its own; leave "
                f"at most {MOST_VARIANTS}, or make a LayerChoice of a few"
            )
        for number, arguments in enumerate(found.values()):
            self._modules[str(number)] = kind(**arguments)

    shared: nn.Module
    """The module with the weights of the largest, where they are shared."""

    def _key(self, arguments: Mapping[str, Any]) -> str:
        return key_of([arguments[name] for name in self._open])

    def values(self) -> list[tuple[str, Leaf]]:
        """Return the decisions that the arguments depend on, with the names of these."""
        open_values = [(name, one) for name in self._open for one in find_expressions(self.arguments[name])]
        return [(name, leaf) for name, expression in open_values for leaf in expression.leaves()]

    def branches(self) -> Mapping[str, Sequence[Condition]]:
        """Return the conditions for each module, where each combination of arguments has its own."""
        if self.sharing is not None:
            return {}
        found: dict[str, list[Condition]] = {}
        numbers = {key: str(number) for number, key in enumerate(self._combinations)}
        for taken, arguments in assignments(self.arguments):
            one: Condition = {label: frozenset([key_of(value)]) for label, value in taken.items()}
            found.setdefault(numbers[self._key(arguments)], []).append(one)
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module gives that was decided on."""
        return self.chooser.built(self, args, kwargs)

    def run(self, read: Read, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what the module gives whose arguments are as `read` decides."""
        return self.call(computed(self.arguments, read), args, kwargs)

    def default_arguments(self) -> dict[str, Any]:
        """Return the arguments of a space that nobody decided on."""
        arguments: dict[str, Any] = computed(self.arguments, lambda leaf: leaf.as_given(leaf.default))
        return arguments

    def call(self, arguments: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what the module with these arguments gives."""
        if self.sharing is not None:
            return self.sharing.run(self.shared, arguments, *args, **kwargs)
        return self._variant(arguments)(*args, **kwargs)

    def _variant(self, arguments: Mapping[str, Any]) -> nn.Module:
        module = self._modules[str(list(self._combinations).index(self._key(arguments)))]
        assert module is not None
        return module

    def weighed(self, weigh: Weigh, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what all modules give together.

        Args:
            weigh: Returns the values that something can have, each with its weight.
            args: The arguments of the module's forward.
            kwargs: The same by name.
        """
        if self.sharing is not None:
            return self.sharing.weighed(self.shared, self.arguments, weigh, *args, **kwargs)
        parts: Sequence[tuple[Any, Tensor]] = weigh(self.arguments)
        outputs = [self._variant(arguments)(*args, **kwargs) for arguments, _ in parts]
        return weighted_sum(torch.stack([weight for _, weight in parts]), outputs, where=self._name)

    def reason_not_differentiable(self) -> str | None:
        """Return why its arguments cannot be weighed against each other; None if they can."""
        return None if self.sharing is None else self.sharing.reason_not_differentiable

    def frozen(self, architecture: Mapping[str, Any], memo: dict[Any, Any]) -> nn.Module:
        """Return the module with the arguments of the architecture, and with its part of the weights."""
        arguments = computed(self.arguments, lambda leaf: leaf.taken_from(architecture))
        if self.sharing is None:
            return deepcopy(self._variant(arguments), memo)
        made, shared = self.kind(**arguments), self.shared
        tensors = [*shared.parameters(), *shared.buffers()]
        if tensors:
            made.to(tensors[0])
        self.sharing.fill(made, shared, arguments)
        return made.train(self.training)

    def extra_repr(self) -> str:
        """Return the class and its arguments."""
        return ", ".join([self._name, *(f"{name}={value!r}" for name, value in self.arguments.items())])


def _bound(kind: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    try:
        return inspect.signature(kind).bind(*args, **kwargs)
    except TypeError as error:
        # What wraps a constructor may take more than that.
        with suppress(TypeError):
            return inspect.signature(kind, follow_wrapped=False).bind(*args, **kwargs)
        raise ConfigError(f"Built({name}): {error}") from error


def _by_name(kind: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    bound = _bound(kind, name, args, kwargs)
    found: dict[str, Any] = {}
    for parameter, value in bound.arguments.items():
        how = bound.signature.parameters[parameter].kind
        if how is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif how in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise ConfigError(f"Built({name}): {parameter} has no name of its own; write a function that gives it one")
        else:
            found[parameter] = value
    return found
