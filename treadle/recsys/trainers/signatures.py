"""Calls of methods that users override with fewer arguments than the ones they replace."""

import inspect
from collections.abc import Callable
from typing import Any


def accepted(method: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Return those of `arguments` that the signature of `method` takes.

    >>> accepted(lambda train_data, epoch_idx: None, show_progress=True)
    {}
    >>> accepted(lambda train_data, **more: None, show_progress=True)
    {'show_progress': True}
    """
    parameters = inspect.signature(method).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return arguments
    names = {one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}
    return {name: value for name, value in arguments.items() if name in names}


def required(method: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Return those of `arguments` that `method` cannot be called without.

    >>> required(lambda learner, params=None: None, learner="adam", params=[])
    {'learner': 'adam'}
    """
    parameters = inspect.signature(method).parameters.values()
    named = {one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD}
    return {name: value for name, value in arguments.items() if name in named}


def is_overridden(owner: object, name: str, base: type) -> bool:
    """Whether the class of `owner`, or `owner` itself, has another method `name` than `base`."""
    return name in vars(owner) or getattr(type(owner), name) is not getattr(base, name)
