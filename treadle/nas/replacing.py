"""Putting modules of one's own in the place of choices."""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from treadle.errors import ConfigError
from treadle.nas.choice import Choice
from treadle.nas.input_choice import InputChoice
from treadle.nas.layer_choice import LayerChoice
from treadle.nas.space import Space

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
