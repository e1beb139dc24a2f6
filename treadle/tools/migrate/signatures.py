"""What classes have and calls take, asked of the classes and functions themselves."""

import ast
import inspect
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from treadle.errors import did_you_mean


@cache
def class_attributes(kind: type) -> frozenset[str]:
    """Return the names that an object of a class has: those of the class, and what its methods set of `self`."""
    found = set(dir(kind))
    for one in kind.__mro__:
        found |= set(getattr(one, "__annotations__", {}))
        found |= _set_in(one) if one.__module__.split(".")[0] == "treadle" else set()
    return frozenset(found)


def _set_in(kind: type) -> set[str]:
    node = _definitions(kind.__module__).get(kind.__qualname__.rpartition(".")[2])
    return set() if node is None else assigned_attributes(node)


@cache
def _definitions(module: str) -> dict[str, ast.ClassDef]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):
        return {}
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def assigned_attributes(node: ast.AST) -> set[str]:
    """Return the attributes of `self`, or of any other name, that are set somewhere in a program."""
    found = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and not isinstance(one.ctx, ast.Load)}
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and ast.unparse(one.func).endswith((".update", "setattr")):
            found |= {keyword.arg for keyword in one.keywords if keyword.arg}
            found |= {arg.value for arg in one.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return found


def is_open(kind: type) -> bool:
    """Whether objects of a class may have attributes that only they know."""
    return any("__getattr__" in vars(one) or "__getattribute__" in vars(one) for one in kind.__mro__[:-1])


def call_signature(called: Any) -> inspect.Signature | None:
    """Return what can be passed; None if nobody says."""
    try:
        return inspect.signature(called)
    except (ValueError, TypeError):
        return None


def own_signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> inspect.Signature:
    """Return the signature of a function in a program, `self` included; defaults are only known to be there."""
    given, kinds = node.args, inspect.Parameter
    first = [*given.posonlyargs, *given.args]
    optional = len(first) - len(given.defaults)
    found = []
    for place, one in enumerate(first):
        kind = kinds.POSITIONAL_ONLY if place < len(given.posonlyargs) else kinds.POSITIONAL_OR_KEYWORD
        found.append(kinds(one.arg, kind, default=None if place >= optional else kinds.empty))
    if given.vararg is not None:
        found.append(kinds(given.vararg.arg, kinds.VAR_POSITIONAL))
    for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(kinds(one.arg, kinds.KEYWORD_ONLY, default=kinds.empty if default is None else None))
    if given.kwarg is not None:
        found.append(kinds(given.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(found)


def misfit(signature: inspect.Signature, node: ast.Call, *, bound: int = 0, partly: bool = False) -> str:
    """Return, in words, why a call does not fit a signature; empty if it does, or if nobody can tell.

    Args:
        signature: What can be passed.
        node: The call.
        bound: How many arguments come before those of the call, such as `self`.
        partly: Whether others may follow, as in a lazy call.
    """
    spread = any(isinstance(one, ast.Starred) for one in node.args) or any(one.arg is None for one in node.keywords)
    args = [None] * (bound + sum(not isinstance(one, ast.Starred) for one in node.args))
    names = [str(one.arg) for one in node.keywords if one.arg is not None]
    bind = signature.bind_partial if partly or spread else signature.bind
    try:
        bind(*args, **dict.fromkeys(names))
    except TypeError as error:
        return f"{str(error).removesuffix('.')}{_nearest(signature, names)}"
    return ""


def _nearest(signature: inspect.Signature, names: Sequence[str]) -> str:
    takes = [name for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD]
    unknown = [name for name in names if name not in takes]
    return did_you_mean(unknown[0], takes) if unknown else ""


def unlike(base: inspect.Signature, own: inspect.Signature) -> bool:
    """Whether an override can be called neither by position nor by name as the method is that it stands for."""
    kinds = inspect.Parameter
    if any(one.kind is kinds.VAR_POSITIONAL for one in base.parameters.values()):
        return False
    if len(base.parameters) == 2 and any(one.kind is kinds.VAR_KEYWORD for one in base.parameters.values()):
        # Whatever is known of it is what it is called with, and nobody says that here.
        return False
    fixed = [
        one for one in base.parameters.values() if one.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    needed = [one for one in fixed if one.default is kinds.empty]
    only = [one for one in base.parameters.values() if one.kind is kinds.KEYWORD_ONLY]
    named = [one.name for one in (*fixed[1:], *only)]
    required = [one.name for one in only if one.default is kinds.empty]
    optional = [one.name for one in (*fixed, *only) if one.default is not kinds.empty]
    ways = [(count, required) for count in range(len(needed), len(fixed) + 1)]
    ways += [(1, named), (len(needed), [*required, *optional])]
    return not any(_fits(own, count, names) for count, names in ways)


def _fits(own: inspect.Signature, count: int, names: Sequence[str]) -> bool:
    try:
        own.bind(*[None] * count, **dict.fromkeys(names))
    except TypeError:
        return False
    return True
