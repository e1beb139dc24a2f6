"""A migrated program is looked at before it counts as done: its names, what it imports, overrides and calls.

Nothing of the program is run. What it takes from Treadle and torch is looked up there; what an expression of the
program stands for is followed as far as that is plain, and where it is not, nothing is said.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from treadle.config import locate
from treadle.errors import ConfigError, did_you_mean
from treadle.tools.migrate.signatures import (
    assigned_attributes,
    call_signature,
    class_attributes,
    is_open,
    misfit,
    own_signature,
    unlike,
)
from treadle.tools.migrate.source import undefined_names

LOOKED_UP = ("treadle", "torch", "torchmetrics")
"""The packages that are imported to see what they have; what others have is not known."""
STANDARD = ("collections", "contextlib", "dataclasses", "functools", "itertools", "typing")
"""Modules of Python's whose names are looked up, too."""
PACKS = ("treadle.engine", "treadle.nas", "treadle.recsys", "treadle.lightning")
LAZY = "LazyCall"
Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Known:
    """An expression stands for something that is installed."""

    value: Any


@dataclass(frozen=True)
class Made:
    """An expression stands for an object of an installed class, or of a class of the program."""

    kind: "Known | Own"


@dataclass(frozen=True)
class Own:
    """An expression stands for a class of the program."""

    node: ast.ClassDef


@dataclass(frozen=True)
class Later:
    """An expression stands for a call of something that is made later, such as a lazy one."""

    called: Known


@dataclass(frozen=True)
class LazyCallValue:
    """An expression stands for a lazy call with its arguments, which can still be set."""

    called: Known


Meaning = Known | Made | Own | Later | LazyCallValue | None


def find_problems(text: str) -> list[tuple[int, str]]:
    """Return what keeps a program from running as it is written, by line; an empty list if nothing is found."""
    try:
        tree = ast.parse(text)
        compile(text, "program", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return [(getattr(error, "lineno", None) or 0, f"it is no Python: {error}")]
    found = [(line, f"{name} is not defined") for line, name in undefined_names(text, tree)]
    checker = _Checker(tree)
    checker.run()
    return sorted(set(found + checker.found))


@dataclass
class _Scope:
    """Where names are looked up: those that are bound once, with what they are bound to; None for all others."""

    names: dict[str, Any] = field(default_factory=dict)
    outer: "_Scope | None" = None
    owner: ast.ClassDef | None = None

    def find(self, name: str) -> tuple[Any, "_Scope"] | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name], scope
            scope = scope.outer
        return None


class _Checker:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.found: list[tuple[int, str]] = []
        self._set = assigned_attributes(tree)
        self._used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        self._used |= {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is str
        }
        taken = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        modules = [f"{node.module}.{alias.name}" for node in taken for alias in node.names]
        # Their trainers have more than the one that callbacks know.
        self._uses_packs = any(name.startswith(PACKS) for name in modules)
        self._following: set[int] = set()
        self._class: ast.ClassDef | None = None
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        self._defined = {name for node in classes for name in _bound(node.body)}
        self._top = _Scope(_bound(tree.body))

    def run(self) -> None:
        self._visit(self.tree.body, self._top)

    def _tell(self, node: Any, text: str) -> None:
        self.found.append((node.lineno, text))

    # What expressions stand for ------------------------------------------------------------------------------

    def _meaning(self, node: Any, scope: _Scope) -> Meaning:
        if id(node) in self._following:
            return None
        self._following.add(id(node))
        try:
            if isinstance(node, ast.Name):
                bound = scope.find(node.id)
                return None if bound is None else self._of_binding(node.id, *bound)
            if isinstance(node, ast.Attribute):
                return self._of_attribute(node, scope)
            return self._of_call(node, scope) if isinstance(node, ast.Call) else None
        finally:
            self._following.discard(id(node))

    def _of_binding(self, name: str, bound: Any, scope: _Scope) -> Meaning:
        if isinstance(bound, ast.ClassDef):
            return Own(bound)
        if isinstance(bound, Made):
            return bound
        if isinstance(bound, (ast.Import, ast.ImportFrom)):
            return _imported(bound, name)
        return self._meaning(bound, scope) if isinstance(bound, ast.expr) else None

    def _of_attribute(self, node: ast.Attribute, scope: _Scope) -> Meaning:
        base = self._meaning(node.value, scope)
        if not isinstance(base, Known) or not (inspect.ismodule(base.value) or inspect.isclass(base.value)):
            return None
        found = _member(base.value, node.attr)
        return None if found is None else Known(found)

    def _of_call(self, node: ast.Call, scope: _Scope) -> Meaning:
        called = self._meaning(node.func, scope)
        if isinstance(called, Own):
            return Made(called)
        if isinstance(called, Later):
            return LazyCallValue(called.called)
        if not isinstance(called, Known):
            return None
        if called.value is partial or getattr(called.value, "__name__", "") == LAZY:
            inner = self._meaning(node.args[0], scope) if node.args else None
            return Later(inner) if isinstance(inner, Known) and called.value is not partial else None
        return Made(called) if inspect.isclass(called.value) else None

    def _base_of(self, node: ast.ClassDef) -> type | None:
        """Return the first installed class that a class of the program derives from; None if a base is not known."""
        for base in node.bases:
            meaning = self._meaning(base, self._top)
            if isinstance(meaning, Own):
                return self._base_of(meaning.node)
            if not isinstance(meaning, Known) or not inspect.isclass(meaning.value):
                return None
            return meaning.value
        return None

    def _method(self, node: ast.ClassDef, name: str) -> Function | None:
        """Return a method of a class of the program, or of one that it derives from in it."""
        for one in node.body:
            if isinstance(one, Function) and one.name == name:
                return one
        meaning = self._meaning(node.bases[0], self._top) if node.bases else None
        return self._method(meaning.node, name) if isinstance(meaning, Own) else None

    # Looking -------------------------------------------------------------------------------------------------

    def _visit(self, body: list[Any], scope: _Scope) -> None:
        for node in body:
            self._visit_one(node, scope)

    def _visit_one(self, node: Any, scope: _Scope) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._check_import(node)
        elif isinstance(node, ast.ClassDef):
            self._check_class(node)
            self._visit(node.body, _Scope(outer=scope, owner=node))
        elif isinstance(node, (*FUNCTIONS, ast.Lambda)):
            self._visit_function(node, scope)
        else:
            if isinstance(node, ast.Call):
                self._check_call(node, scope)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._check_attribute(node, scope)
            elif isinstance(node, ast.Assign):
                self._check_arguments_set(node, scope)
            for child in ast.iter_child_nodes(node):
                self._visit_one(child, scope)

    def _visit_function(self, node: Any, scope: _Scope) -> None:
        body = node.body if isinstance(node.body, list) else [node.body]
        given = node.args
        arguments = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        names: dict[str, Any] = {**_bound(body), **dict.fromkeys(arguments)}
        plain = not any(ast.unparse(one) == "staticmethod" for one in getattr(node, "decorator_list", ()))
        if scope.owner is not None and arguments and plain and arguments[0] == "self":
            names["self"] = Made(Own(scope.owner))
            if "trainer" in arguments and self._is_callback(scope.owner) and not self._uses_packs:
                names["trainer"] = Made(Known(locate("treadle.Trainer")))
        for default in (*given.defaults, *given.kw_defaults, *getattr(node, "decorator_list", ())):
            if default is not None:
                self._visit_one(default, scope)
        # The names of a class are not seen in its methods.
        inner = _Scope(names, scope if scope.owner is None else scope.outer)
        before, self._class = self._class, scope.owner or self._class
        self._visit(body, inner)
        self._class = before

    def _is_callback(self, node: ast.ClassDef) -> bool:
        base = self._base_of(node)
        return base is not None and any(one.__name__ == "TrainerCallback" for one in base.__mro__)

    # Checks --------------------------------------------------------------------------------------------------

    def _check_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            module = str(node.module) if isinstance(node, ast.ImportFrom) else alias.name
            root = module.split(".")[0]
            if root not in ("treadle", *STANDARD) or (isinstance(node, ast.ImportFrom) and node.level):
                continue
            home = _module(module)
            if home is None:
                self._tell(node, f"there is no module {module}")
            elif isinstance(node, ast.ImportFrom) and alias.name != "*" and _member(home, alias.name) is None:
                self._tell(node, f"{module} has no {alias.name!r}{did_you_mean(alias.name, dir(home))}")

    def _check_attribute(self, node: ast.Attribute, scope: _Scope) -> None:
        if _is_super(node.value):
            base = self._base_of(self._class) if self._class is not None else None
            if base is not None and not is_open(base) and not self._has(base, node.attr):
                self._tell(node, f"{_name(base)} has no {node.attr!r}{did_you_mean(node.attr, class_attributes(base))}")
            return
        if isinstance(node.value, ast.Attribute) and node.value.attr == "_accelerator":
            self._check_accelerator(node, self._kind_of(self._meaning(node.value.value, scope)))
        meaning = self._meaning(node.value, scope)
        if isinstance(meaning, Known) and inspect.ismodule(meaning.value) and not _has_part(meaning.value, node.attr):
            near = did_you_mean(node.attr, dir(meaning.value))
            self._tell(node, f"{meaning.value.__name__} has no {node.attr!r}{near}")
        kind = self._kind_of(meaning)
        if kind is not None and not is_open(kind) and not self._has(kind, node.attr):
            self._tell(node, f"{_name(kind)} has no {node.attr!r}{did_you_mean(node.attr, class_attributes(kind))}")

    def _check_accelerator(self, node: ast.Attribute, owner: type | None) -> None:
        """Look whether the stand-in for Accelerate's class, which has no other attributes, has this one."""
        facade, instead = (
            locate("treadle.loop.accelerator.AcceleratorFacade"),
            locate("treadle.loop.accelerator.INSTEAD"),
        )
        if owner is not None and issubclass(owner, locate("treadle.Trainer")) and not hasattr(facade, node.attr):
            hint = f"; {instead[node.attr]}" if node.attr in instead else did_you_mean(node.attr, dir(facade))
            self._tell(node, f"trainer._accelerator has no {node.attr!r}{hint}")

    def _kind_of(self, meaning: Meaning) -> type | None:
        """Return the class of Treadle's whose attributes an object has, besides those that the program sets."""
        kind: Any
        if isinstance(meaning, Known) and inspect.isclass(meaning.value):
            kind = meaning.value
        elif isinstance(meaning, Made):
            own = meaning.kind
            kind = own.value if isinstance(own, Known) else self._base_of(own.node)
        else:
            return None
        return kind if isinstance(kind, type) and _is_ours(kind) else None

    def _has(self, kind: type, name: str) -> bool:
        return name in class_attributes(kind) or hasattr(kind, name) or name in self._set or name in self._defined

    def _check_call(self, node: ast.Call, scope: _Scope) -> None:
        if isinstance(node.func, ast.Attribute):
            self._check_method_call(node, node.func, scope)
        meaning = self._meaning(node.func, scope)
        if isinstance(meaning, Later):
            self._check_fit(node, meaning.called.value, partly=True)
        elif isinstance(meaning, Known):
            self._check_known_call(node, meaning.value, scope)
        elif isinstance(meaning, Own):
            init = self._method(meaning.node, "__init__")
            base = self._base_of(meaning.node)
            if init is not None:
                self._check_own(node, meaning.node.name, init)
            elif base is not None:
                self._check_fit(node, base, name=meaning.node.name)

    def _check_known_call(self, node: ast.Call, called: Any, scope: _Scope) -> None:
        if called is partial and node.args:
            inner = self._meaning(node.args[0], scope)
            if isinstance(inner, Known):
                rest = ast.copy_location(ast.Call(node.func, node.args[1:], node.keywords), node)
                self._check_fit(rest, inner.value, partly=True)
        elif inspect.isclass(called) or inspect.isroutine(called):
            self._check_fit(node, called)

    def _check_method_call(self, node: ast.Call, func: ast.Attribute, scope: _Scope) -> None:
        if _is_super(func.value):
            base = self._base_of(self._class) if self._class is not None else None
            method = None if base is None else getattr(base, func.attr, None)
            if inspect.isfunction(method) and _is_ours(base):
                self._check_fit(node, method, bound=1, name=f"super().{func.attr}")
            return
        meaning = self._meaning(func.value, scope)
        if isinstance(meaning, LazyCallValue) and func.attr == "update":
            self._check_fit(
                ast.copy_location(ast.Call(func, [], node.keywords), node), meaning.called.value, partly=True
            )
        if not isinstance(meaning, Made):
            return
        own = self._method(meaning.kind.node, func.attr) if isinstance(meaning.kind, Own) else None
        if own is not None:
            self._check_own(node, func.attr, own)
            return
        kind = self._kind_of(meaning)
        method = None if kind is None or func.attr in self._set else inspect.getattr_static(kind, func.attr, None)
        if inspect.isfunction(method):
            self._check_fit(node, method, bound=1, name=f"{kind.__name__}.{func.attr}")  # type: ignore[union-attr]

    def _check_own(self, node: ast.Call, name: str, function: Function) -> None:
        if function.decorator_list:
            return
        wrong = misfit(own_signature(function), node, bound=1)
        if wrong:
            self._tell(node, f"{name}: {wrong}")

    def _check_fit(self, node: ast.Call, called: Any, *, bound: int = 0, partly: bool = False, name: str = "") -> None:
        signature = call_signature(called) if _is_looked_up(called) else None
        wrong = "" if signature is None else misfit(signature, node, bound=bound, partly=partly)
        if wrong:
            self._tell(node, f"{name or _name(called)}: {wrong}")

    def _check_arguments_set(self, node: ast.Assign, scope: _Scope) -> None:
        """Look whether a lazy call takes what is set in it afterwards: `optim.lr = 1` or `optim["lr"] = 1`."""
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                key = target.attr
            elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                key = str(target.slice.value)
            else:
                continue
            meaning = self._meaning(target.value, scope)
            if isinstance(meaning, LazyCallValue) and not key.startswith("_"):
                given = ast.Call(target, [], [ast.keyword(key, node.value)])
                self._check_fit(ast.copy_location(given, node), meaning.called.value, partly=True)

    def _check_class(self, node: ast.ClassDef) -> None:
        base = self._base_of(node)
        if base is None or not _is_ours(base):
            return
        for method in node.body:
            if isinstance(method, Function) and not method.decorator_list and not method.name.startswith("__"):
                self._check_override(method, base)

    def _check_override(self, method: Function, base: type) -> None:
        theirs = inspect.getattr_static(base, method.name, None)
        if inspect.isfunction(theirs) and _is_ours(theirs):
            signature, own = call_signature(theirs), own_signature(method)
            if _may_leave_index_out(base, method.name) and len(own.parameters) == 2:
                return
            if signature is not None and unlike(signature, own):
                self._tell(
                    method, f"{method.name}{own} is called as {method.name}{_plain(signature)}; take these arguments"
                )
        elif theirs is None and method.name not in self._used and self._resembles(method.name, base):
            near = did_you_mean(method.name, dir(base))
            self._tell(method, f"nobody calls {method.name}: {_name(base)} has no such method{near}")

    @staticmethod
    def _resembles(name: str, base: type) -> bool:
        """Whether a method looks like one that is meant for its parent: by its first word, or as none for others."""
        if is_open(base):
            # A model has what its trainer asks for, which may be in another file.
            return False
        if name.startswith("_"):
            return True
        words = {one.split("_")[0] for one in dir(base) if not one.startswith("_") and "_" in one}
        return "_" in name and name.split("_")[0] in words & {"on", "before", "after", "calculate", "create", "build"}


def _bound(body: list[Any]) -> dict[str, Any]:
    """Return the names that statements bind, and what to; None for those that are bound more than once, or by loops."""
    found: dict[str, Any] = {}
    for name, value in _bindings(body):
        found[name] = None if name in found else value
    return found


def _bindings(body: list[Any]) -> Iterator[tuple[str, Any]]:
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name.split(".")[0], node) for alias in node.names)
        elif isinstance(node, (ast.ClassDef, *FUNCTIONS)):
            yield node.name, node
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        else:
            yield from _inside(node)


def _inside(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield what other statements bind, all of it unknown but for what stands in their blocks."""
    for name in ("body", "orelse", "finalbody", "handlers"):
        blocks = getattr(node, name, [])
        yield from _bindings(blocks if isinstance(blocks, list) else [])
    simple = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
    for child in simple:
        for one in ast.walk(child):
            if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load):
                yield one.id, None


def _imported(node: ast.Import | ast.ImportFrom, name: str) -> Meaning:
    for alias in node.names:
        if (alias.asname or alias.name.split(".")[0]) != name:
            continue
        if isinstance(node, ast.ImportFrom):
            if node.level or str(node.module).split(".")[0] not in (*LOOKED_UP, *STANDARD):
                return None
            home = _module(str(node.module))
            found = None if home is None else _member(home, alias.name)
        else:
            looked_up = alias.name.split(".")[0] in (*LOOKED_UP, *STANDARD)
            found = _module(alias.name if alias.asname else name) if looked_up else None
        return None if found is None else Known(found)
    return None


def _module(name: str) -> Any:
    """Return a module, imported if need be; None if there is none of that name."""
    try:
        locate(f"{name}.__name__")
    except ConfigError:
        return None
    return sys.modules.get(name)


def _member(value: Any, name: str) -> Any:
    found = getattr(value, name, None)
    if found is None and inspect.ismodule(value) and hasattr(value, "__path__"):
        found = _module(f"{value.__name__}.{name}")
    return found


def _has_part(value: Any, name: str) -> bool:
    return hasattr(value, name) or _member(value, name) is not None


def _is_super(node: Any) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _is_ours(kind: Any) -> bool:
    return str(getattr(kind, "__module__", "")).split(".")[0] == "treadle"


def _is_looked_up(called: Any) -> bool:
    return str(getattr(called, "__module__", "")).split(".")[0] in LOOKED_UP


def _name(called: Any) -> str:
    return str(getattr(called, "__qualname__", called))


def _plain(signature: inspect.Signature) -> str:
    """Return a signature without types, as one writes it."""
    bare = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def _may_leave_index_out(base: type, method: str) -> bool:
    """Whether a method is called with a batch and its number, or with the batch alone, as it is written."""
    from treadle.lightning.module import INDEXED, StepModel  # here, since it loads torch

    return method in INDEXED and issubclass(base, StepModel)
