"""From a space and an architecture to a network."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import nn

from treadle.errors import ConfigError
from treadle.nas.space.choice import Choice
from treadle.nas.space.choosers import DEFAULTS, Chooser
from treadle.nas.space.input_choice import InputChoice
from treadle.nas.space.layer_choice import LayerChoice
from treadle.nas.space.model_space import Space
from treadle.nas.space.value_choice import FREEZE_KEY

# Putting modules of your own in the place of choices


Kind = TypeVar("Kind", bound=Choice)
Replaced = list[tuple[str, nn.Module]]


def replace_layer_choice(
    root_module: nn.Module, init_fn: Callable[[LayerChoice], nn.Module], modules: Replaced | None = None
) -> Replaced:
    """Put `init_fn(choice)` in the place of every layer choice in a model, of nested ones too.

    Choices inside of candidates are replaced before those around them. One that is used in several places is replaced
    once, and its replacement is used in all of them.

    Args:
        root_module: The model, which is changed.
        init_fn: Makes the replacement.
        modules: Where the replacements are added, with their labels.

    Returns:
        `modules`, or a new list.
    """
    return _replace(root_module, LayerChoice, init_fn, modules)


def replace_input_choice(
    root_module: nn.Module, init_fn: Callable[[InputChoice], nn.Module], modules: Replaced | None = None
) -> Replaced:
    """Put `init_fn(choice)` in the place of every input choice in a model; see `replace_layer_choice`."""
    return _replace(root_module, InputChoice, init_fn, modules)


def _replace(
    root: nn.Module, kind: type[Kind], init_fn: Callable[[Kind], nn.Module], modules: Replaced | None
) -> Replaced:
    found: Replaced = [] if modules is None else modules
    if isinstance(root, kind):
        raise ConfigError(
            f"the model itself is a {kind.__name__}, which cannot be replaced in place; put it into a module"
        )
    Space(root)
    done: dict[int, nn.Module] = {}
    # A choice that nobody keeps any more would give its id to somebody else.
    originals: list[nn.Module] = []

    def go_through(module: nn.Module) -> None:
        if id(module) in done:
            return
        done[id(module)] = module
        originals.append(module)
        for name, child in list(module._modules.items()):
            if child is None:
                continue
            go_through(child)
            if isinstance(child, kind):
                if done[id(child)] is child:
                    done[id(child)] = init_fn(child)
                    found.append((child.key, done[id(child)]))
                module._modules[name] = done[id(child)]

    go_through(root)
    return found


# Giving the choices of a model somebody who decides


def attach(model: nn.Module, chooser: Chooser = DEFAULTS) -> Space:
    """Let `chooser` decide at every choice of a model; by default the defaults are taken again.

    Returns:
        The space of the model.
    """
    space = Space(model)
    space.attach(chooser)
    return space


@contextmanager
def temporarily_attach(space: Space, chooser: Chooser) -> Iterator[None]:
    """Let `chooser` decide inside of the block, and afterwards whoever did before."""
    before = [(user, user.chooser) for user in space.users]
    space.attach(chooser)
    try:
        yield
    finally:
        for user, own in before:
            user.chooser = own


def freeze(model: nn.Module, architecture: Mapping[str, Any]) -> nn.Module:
    """Return the network that an architecture leaves of a space: plain modules, with no search code in them.

    The network is a copy, with copies of the weights, and shares nothing with the space; no random number is drawn. For
    new weights, freeze a space that was just built: `freeze(Net(), architecture)`.

    Args:
        model: The space, one that was searched too.
        architecture: What was decided, as `export` returns it or a JSON file holds it.

    Raises:
        ConfigError: A value is missing or cannot be taken.
    """
    space = Space(model)
    memo: dict[Any, Any] = {FREEZE_KEY: space.complete(architecture)}
    with torch.random.fork_rng(devices=[]):
        network: nn.Module = deepcopy(space.model, memo)
    return network
