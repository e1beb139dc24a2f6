"""Wrong arguments, found by the signature of what is to be called, before anything is called."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from omegaconf import DictConfig, OmegaConf, ValueNode

from treadle.config.arguments import accepted_names, accepted_parameters
from treadle.config.nodes import TARGET, children, is_lazy, location, read
from treadle.config.targets import loaded, locate, title
from treadle.errors import ConfigError, did_you_mean

HYDRA_KEYS = frozenset({TARGET, "_args_", "_partial_", "_recursive_", "_convert_"})
"""What Hydra's `instantiate` gives a meaning of its own; all other keys of a lazy call are arguments."""


def check_names(target: Any, names: Iterable[str], node: DictConfig | None = None) -> None:
    """Raise for the first of `names` that `target` does not take; `node` is the call, for the message."""
    accepted = accepted_names(target)
    for name in names:
        if accepted is None or name in accepted or name in HYDRA_KEYS:
            continue
        place = "" if node is None else f"{location(node, name)}: "
        public = [known for known in accepted if not known.startswith("_")]
        near = did_you_mean(name, accepted) or f"; it takes {public}"
        raise ConfigError(f"{place}{title(target)} takes no {name!r}{near}")


def check_tree(node: Any, *, load_targets: bool, left_out: Iterable[str] = ()) -> None:
    """Check the arguments of every lazy call in a tree.

    Args:
        node: the tree.
        load_targets: import the modules of targets that are given by name. Otherwise such a target is checked only
            if its module is there already, so that no code is run.
        left_out: keys at the top of the tree below which nothing is checked.

    Raises:
        ConfigError: an argument that a target does not take, or a target that cannot be found or called.
    """
    for call in lazy_calls(node, left_out=frozenset(left_out)):
        target = call_target(call, load=load_targets)
        if target is not None:
            check_names(target, [str(name) for name in call], call)
            _check_numbers(target, call)


def _check_numbers(target: Any, call: DictConfig) -> None:
    """Raise for a truth value where `target` takes a number: as one it would be 0 or 1."""
    given = {str(name): _plain_value(call, name) for name in call}
    wrong = [name for name, value in given.items() if isinstance(value, bool)]
    for parameter in accepted_parameters(target) or [] if wrong else []:
        if parameter.name in wrong and _takes_numbers_only(parameter):
            raise ConfigError(
                f"{location(call, parameter.name)} is {given[parameter.name]}, but {title(target)} takes a number "
                "there; YAML reads `on`, `yes`, `off` and `no` as truth values"
            )


def _plain_value(call: DictConfig, name: Any) -> Any:
    node: Any = call._get_node(name)
    node = None if node is None else node._maybe_dereference_node()
    return node._value() if isinstance(node, ValueNode) else None


def _takes_numbers_only(parameter: inspect.Parameter) -> bool:
    """Whether an argument is a number by its annotation, or by a default that is no truth value.

    >>> from torch.optim import SGD
    >>> taken = inspect.signature(SGD).parameters
    >>> _takes_numbers_only(taken["lr"]), _takes_numbers_only(taken["nesterov"])
    (True, False)
    """
    if isinstance(parameter.default, bool):
        return False
    if parameter.annotation is parameter.empty:
        # A whole number may stand for a truth value there.
        return isinstance(parameter.default, float)
    kinds: Iterable[Any] = get_args(parameter.annotation) or (parameter.annotation,)
    if isinstance(parameter.annotation, str):
        kinds = [
            {"float": float, "int": int, "bool": bool}.get(kind.strip()) for kind in parameter.annotation.split("|")
        ]
    return (float in kinds or int in kinds) and bool not in kinds


def lazy_calls(node: Any, *, left_out: frozenset[str] = frozenset()) -> Iterator[DictConfig]:
    """Yield every lazy call that building `node` would make, the outermost first."""
    if is_lazy(node):
        yield node
        if not node.get("_recursive_", True):
            return
    for key, child in children(node):
        if key not in left_out:
            yield from lazy_calls(child)


def call_target(call: DictConfig, *, load: bool) -> Any:
    """Return what a lazy call calls; None if it is a call itself or, unless `load`, not known yet."""
    node = call._get_node(TARGET)
    if isinstance(node, DictConfig) or (not load and OmegaConf.is_interpolation(call, TARGET)):
        return None
    target = read(call, TARGET)
    if isinstance(target, str):
        target = _located(call, target) if load else loaded(target)
    if target is not None and not callable(target):
        raise ConfigError(f"{location(call, TARGET)}: {title(target)} cannot be called")
    return target


def _located(call: DictConfig, name: str) -> Any:
    try:
        return locate(name)
    except ConfigError as error:
        raise ConfigError(f"{location(call, TARGET)}: {error}") from error
