"""The reference: a page for each public module, from its signatures and docstrings."""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from website.docstrings import as_markdown

MODULES = (
    "treadle",
    "treadle.callbacks",
    "treadle.data",
    "treadle.data.sources",
    "treadle.data.prepare",
    "treadle.optim",
    "treadle.optim.param_groups",
    "treadle.schedules",
    "treadle.loop",
    "treadle.ops.document_attention",
    "treadle.ops.linear_cross_entropy",
    "treadle.ops.packed_models",
    "treadle.checkpoint",
    "treadle.checkpoint.importers.systems",
    "treadle.events",
    "treadle.writers",
    "treadle.execution",
    "treadle.precision",
    "treadle.parallel",
    "treadle.files.storage",
    "treadle.lightning",
    "treadle.hf",
    "treadle.config",
    "treadle.config.resolution",
    "treadle.engine",
    "treadle.engine.hooks",
    "treadle.engine.evaluation",
    "treadle.recsys",
    "treadle.recsys.config",
    "treadle.recsys.data.dataloader",
    "treadle.recsys.data.sampling",
    "treadle.recsys.models",
    "treadle.recsys.models.general_recommender",
    "treadle.recsys.models.sequential_recommender",
    "treadle.recsys.models.context_aware_recommender",
    "treadle.recsys.models.knowledge_aware_recommender",
    "treadle.recsys.models.exlib_recommender",
    "treadle.recsys.models.layers",
    "treadle.recsys.trainers",
    "treadle.recsys.evaluation",
    "treadle.recsys.bench",
    "treadle.recsys.compat",
    "treadle.recsys.tune.search",
    "treadle.recsys.tune.space",
    "treadle.nas",
    "treadle.nas.oneshot",
    "treadle.nas.costs",
    "treadle.nas.viz",
    "treadle.nas.zoo",
    "treadle.search",
    "treadle.search.strategies",
    "treadle.search.promotion",
    "treadle.search.launchers",
    "treadle.search.plots",
    "treadle.tools.report",
    "treadle.tools.doctor",
    "treadle.tools.migrate",
    "treadle.tools.reproduce",
    "treadle.errors",
)
INTERNAL = {
    "treadle.cli": "the command line, which is used by its commands: docs/cli.md",
    "treadle.recsys.models.boosting": "what the two models of exlib_recommender have in common",
    "treadle.tools.demo": "the demonstrations, which are run by `treadle demo`",
    "treadle.tools.doctor.detectors": "the parts of the doctor, which runs all of them",
    "treadle.tools.scaffold": "the templates of `treadle init`",
}
"""Packages that list names for the rest of Treadle, and not for users, each with the reason."""
WIDE = 100
"""A signature that is wider has a line for each argument."""


def reference_pages() -> dict[str, str]:
    """Return the pages of the reference, by their paths in the site."""
    pages = {f"reference/{name}.md": module_page(name) for name in MODULES}
    rows = "".join(f"| [`{name}`]({name}.md) | {first_line(import_module(name))} |\n" for name in MODULES)
    head = "# API reference\n\nEvery public name, with its signature, from the docstrings.\n\n"
    return {"reference/index.md": f"{head}| module | what |\n|---|---|\n{rows}", **pages}


def public_names(module: ModuleType) -> list[str]:
    """Return the names that a module exports: its `__all__`, or what is written in it."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        listed = [name for name in own if not name.startswith("_")]
    return [name for name in listed if not name.startswith("__")]


def first_line(thing: Any) -> str:
    """Return the first sentence of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def module_page(name: str) -> str:
    """Return the page of a module."""
    module = import_module(name)
    parts = [f"# {name}", as_markdown(inspect.getdoc(module) or "")]
    for each in public_names(module):
        value = getattr(module, each)
        if not isinstance(value, ModuleType):
            parts += described(module, each, value)
    return "\n\n".join(part for part in parts if part) + "\n"


def described(module: ModuleType, name: str, value: Any) -> Iterator[str]:
    """Yield the parts of a page that describe a name."""
    yield f"## {name}"
    if isinstance(value, type):
        yield block(signature_of(name, value))
        yield as_markdown(inspect.cleandoc(value.__doc__ or "") if has_own_text(value) else "")
        for method, member in methods_of(value):
            yield from method_parts(f"{name}.{method}", member)
    elif callable(value) and inspect.getdoc(value):
        yield block(signature_of(name, value))
        yield as_markdown(inspect.getdoc(value) or "")
    else:
        yield value_text(module.__name__, name) or f"`{short(repr(value))}`"


def has_own_text(kind: type) -> bool:
    """Whether the docstring of a class was written, not inherited or made up by a dataclass."""
    return "__doc__" in vars(kind) and not str(kind.__doc__).startswith(f"{kind.__name__}(")


def method_parts(name: str, member: Any) -> Iterator[str]:
    """Yield the heading, signature and docstring of a method or property."""
    yield f"### {name}"
    if isinstance(member, property):
        yield f"*property* {as_markdown(inspect.getdoc(member) or '')}"
        return
    yield block(signature_of(name.rpartition(".")[2], member, bound=True))
    yield as_markdown(inspect.getdoc(member) or "")


def methods_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class: its own, and those of private classes that it is made of."""
    seen = set()
    for part in kind.__mro__:
        if part is not kind and not is_private(part):
            continue
        for name, member in vars(part).items():
            plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            if name.startswith("_") or name in seen or not (inspect.isfunction(plain) or isinstance(plain, property)):
                continue
            seen.add(name)
            if inspect.getdoc(plain):
                yield name, plain


def is_private(kind: type) -> bool:
    """Whether a class is a part of another one that only that one shows."""
    parts = kind.__module__.split(".")
    return parts[0] == "treadle" and (kind.__name__.startswith("_") or any(part.startswith("_") for part in parts))


def block(text: str) -> str:
    """Return a block of Python."""
    return f"```python\n{text}\n```" if text else ""


def signature_of(name: str, thing: Any, *, bound: bool = False) -> str:
    """Return how to call something; empty if Python does not know.

    >>> signature_of("divmod", divmod)
    'divmod(x, y, /)'
    """
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    parameters = list(signature.parameters.values())
    if bound and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    result = inspect.Signature.empty if isinstance(thing, type) else as_text(signature.return_annotation)
    # Marks such as `/` and `*` are put in by the signature itself, which knows where they belong.
    shown = str(signature.replace(parameters=[cleaned(one) for one in parameters], return_annotation=result))
    text = f"{name}{readable(shown)}"
    if len(text) <= WIDE:
        return text
    arguments, _, result = text.removeprefix(f"{name}(").rpartition(")")
    lines = "".join(f"    {argument},\n" for argument in split_arguments(arguments))
    return f"{name}(\n{lines}){result}"


class _Shown:
    """Stands for a default in a signature, and looks as it is to be read."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def cleaned(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter whose default has no address in memory, and whose annotation is text."""
    default = parameter.default
    if default is not parameter.empty:
        named = isinstance(default, type) or inspect.isfunction(default)
        default = _Shown(default.__name__ if named else short(repr(default)))
    return parameter.replace(default=default, annotation=as_text(parameter.annotation))


def as_text(annotation: Any) -> Any:
    """Return an annotation as it is to be read; none stays none."""
    if annotation is inspect.Signature.empty:
        return annotation
    return _Shown(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def short(text: str) -> str:
    """Return a value as it is read: without addresses, and not too long."""
    plain = re.sub(r"<(?:function |class ')?([\w.]+).*?>", lambda found: found[1].rpartition(".")[2], text)
    return plain if len(plain) <= 60 else f"{plain[:57]}..."


def readable(text: str) -> str:
    """Return a signature without the modules in front of names, and without quotes around types."""
    bare = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", text)
    return bare.replace("'", '"') if '"' not in bare else bare


def split_arguments(text: str) -> list[str]:
    """Return the arguments of a call, which may hold commas in brackets.

    >>> split_arguments("a: dict[str, int], *, b=(1, 2)")
    ['a: dict[str, int]', '*', 'b=(1, 2)']
    """
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def value_text(module: str, name: str) -> str:
    """Return the string below the line that gives a name its value, in the module or the one that it came from."""
    tree = tree_of(module)
    if tree is None:
        return ""
    for node, below in zip(tree.body, tree.body[1:], strict=False):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets) and is_text(below):
            return inspect.cleandoc(below.value.value)  # type: ignore[attr-defined]
    homes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    home = next((node.module for node in homes if any(alias.name == name for alias in node.names)), None)
    return value_text(home, name) if home is not None and home.startswith("treadle") else ""


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is a string that stands alone."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def tree_of(module: str) -> ast.Module | None:
    """Return the syntax tree of a module."""
    try:
        return ast.parse(inspect.getsource(import_module(module)))
    except OSError:
        return None
