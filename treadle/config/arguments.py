"""Which arguments a function takes, by its signature."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar, Unpack, get_args, get_origin

from treadle.errors import ArgumentError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def checked_names(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Have a keyword argument that `function` does not have refused with the name of the nearest that it has.

    Its signature, its help and its type stay as they are.

    >>> @checked_names
    ... def train(data, *, learning_rate=0.1): ...
    >>> train([], learing_rate=0.2)
    Traceback (most recent call last):
    treadle.errors.ArgumentError: train() takes no 'learing_rate'; did you mean 'learning_rate'?
    """
    names = accepted_names(function)
    if names is None:
        return function
    shown = [name for name in names if name != "self"]

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for name in kwargs:
            if name not in names:
                called = function.__qualname__.removesuffix(".__init__")
                raise ArgumentError(f"{called}() takes no {name!r}{_nearest(name, shown)}")
        return function(*args, **kwargs)

    # For those who ask for the signature of the wrapper itself.
    vars(call)["__signature__"] = inspect.signature(function)
    return call


def _nearest(name: str, names: list[str]) -> str:
    """Return which of `names` was meant; one that ends as `name` does is near, as `per_device_batch_size` is."""
    endings = {one[place:]: one for one in names for place in range(1, len(one)) if one[place - 1] == "_"}
    endings |= {one: one for one in names}
    found = get_close_matches(name, names, n=1, cutoff=0.75) or get_close_matches(name, endings, n=1, cutoff=0.75)
    return f"; did you mean {endings[found[0]]!r}?" if found else f"; it takes {names}"


def accepted_names(target: Any, *, follow_wrapped: bool = False) -> list[str] | None:
    """Return the names of the arguments that `target` takes, or None where it takes any or does not tell.

    What wraps a function is asked itself, unless `follow_wrapped`: it may take more than what it wraps.

    >>> accepted_names(lambda rate, *, decay=0.0: None)
    ['rate', 'decay']
    """
    parameters = accepted_parameters(target, follow_wrapped=follow_wrapped)
    if parameters is None or any(map(_takes_any, parameters)):
        return None
    return _names(parameters)


def accepted(method: Any, /, **arguments: Any) -> dict[str, Any]:
    """Return those of `arguments` that a method of a user's takes, which may replace one that takes more.

    >>> accepted(lambda train_data, epoch_idx: None, show_progress=True)
    {}
    >>> accepted(lambda train_data, **more: None, show_progress=True)
    {'show_progress': True}
    """
    names = accepted_names(method, follow_wrapped=True)
    return {name: value for name, value in arguments.items() if names is None or name in names}


def known_names(target: Any) -> list[str]:
    """Return the names of the arguments that `target` is known to take; those of what it wraps count too.

    >>> known_names(lambda rate, **more: None)
    ['rate']
    """
    own = accepted_parameters(target, follow_wrapped=False) or []
    wrapped = accepted_parameters(target) or [] if any(map(_takes_any, own)) else []
    return list(dict.fromkeys([*_names(own), *_names(wrapped)]))


def accepted_parameters(target: Any, *, follow_wrapped: bool = True) -> list[inspect.Parameter] | None:
    """Return what `target` takes, in order; None where it does not tell."""
    try:
        return list(inspect.signature(target, follow_wrapped=follow_wrapped).parameters.values())
    except (TypeError, ValueError):
        return None


def _takes_any(parameter: inspect.Parameter) -> bool:
    return parameter.kind is parameter.VAR_KEYWORD and get_origin(parameter.annotation) is not Unpack


def _names(parameters: list[inspect.Parameter]) -> list[str]:
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            names += [] if _takes_any(parameter) else inspect.get_annotations(get_args(parameter.annotation)[0])
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            names.append(parameter.name)
    return names


def default_value(target: Any, name: str) -> Any:
    """Return the default of an argument of `target`; None where it has none, or does not tell.

    >>> default_value(lambda rate, *, decay=0.5: None, "decay")
    0.5
    """
    for follow_wrapped in (False, True):
        for parameter in accepted_parameters(target, follow_wrapped=follow_wrapped) or []:
            if parameter.name == name:
                return None if parameter.default is parameter.empty else parameter.default
    return None
