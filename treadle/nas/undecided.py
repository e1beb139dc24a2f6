"""What is said of a value that is asked for before anybody decided on it."""

import sys
from types import FrameType

import torch
from torch import nn

from treadle.errors import ConfigError

CALL = nn.Module._call_impl.__code__
"""The code that runs a module's forward, with its hooks."""


def require_forward(description: str, placed: bool = False) -> None:
    """Refuse to give the value of an expression where a model is being built, and not run.

    A layer that took the value there would keep that of the defaults, whatever is decided later.

    Args:
        description: The expression, for the message.
        placed: Whether a space was read that it belongs to: then the model stands, and its value may be looked at.

    Raises:
        ConfigError: A module's constructor asks, or nobody knows yet where the expression belongs.
    """
    if torch.compiler.is_compiling():
        return
    runs, maker = _asked_by(sys._getframe(2))
    if not runs and (maker or not placed):
        raise ConfigError(f"{description} is not decided yet, {_remedy(maker)}")


def undecided(description: str) -> ConfigError:
    """Return the error for whoever wants to know whether an expression is true."""
    _, maker = _asked_by(sys._getframe(2))
    if maker.startswith("nn."):
        return ConfigError(f"{description} is not decided yet, {_remedy(maker)}")
    return ConfigError(
        f"{description} is not decided yet, so it is neither true nor false; use & and | instead of `and` and `or`, "
        "condition(test, a, b) instead of `if`, nas.Built(...) for a module that is made of it, and value_of(...) in a "
        "forward"
    )


def _asked_by(frame: FrameType | None) -> tuple[bool, str]:
    """Return whether a module runs forward somewhere above `frame`, and the innermost module that is being made."""
    maker = ""
    while frame is not None:
        code, asking = frame.f_code, frame.f_locals.get("self")
        if code is CALL or (code.co_name == "forward" and isinstance(asking, nn.Module)):
            return True, maker
        if code.co_name == "__init__" and isinstance(asking, nn.Module) and not maker:
            maker = _name(type(asking))
        frame = frame.f_back
    return False, maker


def _remedy(maker: str) -> str:
    in_forward = "in a forward, int(...), float(...) and value_of(...) give the value in force"
    if maker.startswith("nn."):
        return f"and {maker} cannot be made of it; write nas.Built({maker}, ...) with the same arguments; {in_forward}"
    place = f" in {maker}.__init__" if maker else " where nothing runs forward"
    return (
        f"and its value is asked for{place}; make what depends on it with nas.Built(nn.Linear, ...), or with "
        f"nas.Built(function, ...) for anything else, nas.Repeat for a number of blocks; {in_forward}"
    )


def _name(kind: type[nn.Module]) -> str:
    own = kind.__module__.startswith("torch.nn.")
    return f"nn.{kind.__name__}" if own else kind.__qualname__
