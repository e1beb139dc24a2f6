"""The setting `scheduler`: a class by its name with its arguments, or what makes a schedule."""

import ast
import inspect
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.optim import lr_scheduler

from treadle import schedules
from treadle.errors import ConfigError, did_you_mean
from treadle.schedules import require_factory
from treadle.schedules.placeholders import TrainerPlaceholderValues

# The setting `clip_grad_norm`: a number, or the arguments of torch's function of that name


ARGUMENTS = frozenset({"max_norm", "norm_type", "error_if_nonfinite", "foreach"})
"""The arguments of torch's `clip_grad_norm_`."""


def clip_limit(clip: Any) -> float | None:
    """Return the bound of the norm; None for no bound.

    Raises:
        ConfigError: It is no bound.
    """
    if clip is None or clip is False:
        return None
    limit = clip.get("max_norm") if isinstance(clip, Mapping) else clip
    unknown = set(clip) - ARGUMENTS if isinstance(clip, Mapping) else ()
    if unknown or isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit <= 0:
        raise ConfigError(f"clip_grad_norm={clip!r} must be a number above 0, or a dict such as {{'max_norm': 5}}")
    return float(limit)


def needs_custom_norm(clip: Any) -> bool:
    """Whether the norm is another one than the Euclidean, which the core clips by.

    >>> needs_custom_norm({"max_norm": 5, "norm_type": 1}), needs_custom_norm({"max_norm": 5, "norm_type": 2})
    (True, False)
    """
    return isinstance(clip, Mapping) and clip.get("norm_type", 2) != 2


PLATEAU = "ReduceLROnPlateau"
_NUMBERS = {one.name: one for one in TrainerPlaceholderValues}
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def known_schedules() -> dict[str, Any]:
    """Return the classes that a setting may name: those of torch and of Treadle."""
    found = {**vars(lr_scheduler), **{name: getattr(schedules, name) for name in schedules.__all__}}
    return {
        name: one
        for name, one in found.items()
        if isinstance(one, type)
        and callable(getattr(one, "step", None))
        and name[0] != "_"
        and "optimizer" in inspect.signature(one).parameters
    }


def check_schedule(value: Any) -> None:
    """Make sure that a setting says how to make a schedule; text is left until it is to be made.

    Raises:
        ConfigError: It does not.
    """
    if value is not None and not isinstance(value, str):
        schedule_factory(value)


def schedule_factory(value: Any, *, bigger_is_better: bool = True) -> Callable[..., Any] | None:
    """Return what makes a schedule for an optimizer, by the setting for it; None for none.

    >>> schedule_factory({"name": "StepLR", "step_size": "2 * NUM_UPDATE_STEPS_PER_EPOCH"}).keywords
    {'step_size': 2 * NUM_UPDATE_STEPS_PER_EPOCH}

    Args:
        value: A function that takes the optimizer; or the name of a class; or a dict with `name`, and its arguments,
            in which texts with placeholders stand for numbers of the run.
        bigger_is_better: Whether a plateau is one of the largest values, where its `mode` is not given.

    Raises:
        ConfigError: There is no such class, or it has no such argument.
    """
    if value is None:
        return None
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        return require_factory(value, argument=SETTING)
    arguments = {str(name): _number(one) for name, one in value.items() if name != "name"}
    known = known_schedules()
    name = str(value.get("name"))
    if name not in known:
        near = did_you_mean(name, known) or f"; there are {sorted(known)}"
        raise ConfigError(f"scheduler: the name {value.get('name')!r} is no schedule{near}")
    if name == PLATEAU:
        arguments.setdefault("mode", "max" if bigger_is_better else "min")
    _check_arguments(known[name], arguments)
    return partial(known[name], **arguments)


SETTING = "scheduler"


def _check_arguments(kind: Any, arguments: Mapping[str, Any]) -> None:
    signature = inspect.signature(kind)
    names = [name for name in signature.parameters if name != "optimizer"]
    open_ended = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    for name in arguments:
        if name not in names and not open_ended:
            near = did_you_mean(name, names) or f"; it takes {names}"
            raise ConfigError(f"scheduler: {kind.__name__} takes no {name!r}{near}")
    try:
        signature.bind(None, **arguments)
    except TypeError as error:
        raise ConfigError(f"scheduler: {kind.__name__} has {error}") from error


def _number(value: Any) -> Any:
    """Return a value with what its texts stand for, where that is arithmetic with placeholders."""
    if isinstance(value, (list, tuple)):
        return [_number(one) for one in value]
    if not isinstance(value, str) or not any(name in value for name in _NUMBERS):
        return value
    try:
        return _calculated(ast.parse(value, mode="eval").body)
    except (SyntaxError, KeyError) as error:
        raise ConfigError(
            f"scheduler: {value!r} cannot be calculated; write + - * / // and round(...) with numbers and some of "
            f"{sorted(_NUMBERS)}"
        ) from error


def _calculated(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return _NUMBERS[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_calculated(left), _calculated(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_calculated(operand)
        case ast.Call(func=ast.Name(id="round"), args=[one], keywords=[]):
            return round(_calculated(one))
    raise KeyError(ast.unparse(node))
