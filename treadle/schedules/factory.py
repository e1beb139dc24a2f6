"""A scheduler is asked for as a factory, since optimizer and data are ready only when training starts."""

import inspect
from collections.abc import Callable
from typing import Any

from treadle.errors import ConfigError


def require_factory(value: object, *, argument: str = "create_scheduler_fn") -> Callable[..., Any]:
    """Return `value` if it can build a scheduler from an optimizer; an instance of one is refused.

    Args:
        value: what the user passed.
        argument: the name of the argument it was passed as, for the message.

    Raises:
        ConfigError: `value` is a scheduler already built, or cannot be called.
    """
    if _is_scheduler(value):
        name = type(value).__name__
        raise ConfigError(
            f"{argument} got an instance of {name}; pass a factory instead: "
            f"functools.partial({name}, {_argument_hint(type(value))})"
        )
    if not callable(value):
        raise ConfigError(
            f"{argument} got {value!r}, which cannot be called; pass a function that takes the optimizer and "
            "returns a scheduler: functools.partial(StepLR, step_size=...)"
        )
    return value


def require_scheduler(value: Any, *, maker: str) -> Any:
    """Return `value` if it is a scheduler, which something was asked to make.

    Args:
        value: what it returned.
        maker: what it is called, for the message.

    Raises:
        ConfigError: `value` is None, a class, or cannot step.
    """
    if value is None:
        raise ConfigError(f"{maker} returned None; return the scheduler that it makes")
    if isinstance(value, type):
        raise ConfigError(
            f"{maker} returned the class {value.__name__}; return an instance: {value.__name__}(optimizer)"
        )
    if not callable(getattr(value, "step", None)):
        raise ConfigError(f"{maker} returned a {type(value).__name__}, which has no step(); return a scheduler")
    return value


def _is_scheduler(value: object) -> bool:
    return not isinstance(value, type) and hasattr(value, "step") and hasattr(value, "optimizer")


def _argument_hint(scheduler_class: type) -> str:
    """Return the arguments that the class insists on, `step_size=...`, or just dots where it insists on none."""
    parameters = list(inspect.signature(scheduler_class).parameters.values())
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.name != "optimizer"
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return ", ".join(f"{name}=..." for name in required) or "..."
