"""Which arguments a function takes, by its signature."""

import inspect
from typing import Any, Unpack, get_args, get_origin


def accepted_names(target: Any, *, follow_wrapped: bool = False) -> list[str] | None:
    """Return the names of the arguments that `target` takes, or None where it takes any or does not tell.

    What wraps a function is asked itself, unless `follow_wrapped`: it may take more than what it wraps.

    >>> accepted_names(lambda rate, *, decay=0.0: None)
    ['rate', 'decay']
    """
    parameters = parameters_of(target, follow_wrapped=follow_wrapped)
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
    own = parameters_of(target, follow_wrapped=False) or []
    wrapped = parameters_of(target) or [] if any(map(_takes_any, own)) else []
    return list(dict.fromkeys([*_names(own), *_names(wrapped)]))


def parameters_of(target: Any, *, follow_wrapped: bool = True) -> list[inspect.Parameter] | None:
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


def default_of(target: Any, name: str) -> Any:
    """Return the default of an argument of `target`; None where it has none, or does not tell.

    >>> default_of(lambda rate, *, decay=0.5: None, "decay")
    0.5
    """
    for follow_wrapped in (False, True):
        for parameter in parameters_of(target, follow_wrapped=follow_wrapped) or []:
            if parameter.name == name:
                return None if parameter.default is parameter.empty else parameter.default
    return None
