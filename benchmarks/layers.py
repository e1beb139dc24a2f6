"""The order of the rooms of the package, and the imports between them.

A test holds the order (`tests/guards/test_layers.py`), and `python -m benchmarks.house` counts what is against it.
"""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1] / "treadle"

ORDER = (
    "errors",
    "progress",
    "console",
    "events",
    "config",
    "files",
    "precision.tf32",
    "parallel.rendezvous",
    "parallel.flight_recorder",
    "parallel.launch.slurm",
    "parallel.processes",
    "runs",
    "data",
    "phase",
    "precision",
    "ops",
    "checkpoint.format",
    "checkpoint.importers",
    "callback",
    "optim",
    "schedules",
    "memory",
    "execution",
    "parallel",
    "checkpoint.policy",
    "spec",
    "loop",
    "result",
    "checkpoint",
    "run",
    "callbacks",
    "trainer",
    "optim.lr_finder",
    "schedules.timm",
    "writers",
    "lightning",
    "search",
    "engine",
    "recsys",
    "nas",
    "hf",
    "tools",
    "cli",
    "__main__",
)
"""The rooms, from the lowest to the highest; a module belongs to the longest name that it begins with."""


class Import(NamedTuple):
    """A line that imports a module of Treadle."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}, imports {self.imported}"


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax tree of every module of the package, by its dotted name; a package by its own."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text(), str(path))
    return found


def running_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node, functions' bodies included, but nothing that only type checkers see."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from running_nodes(child)


def imports_of(name: str, walk: Callable[[ast.AST], Iterator[ast.AST]]) -> Iterator[Import]:
    for node in walk(modules()[name]):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}, line {node.lineno}: imports are absolute"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [target if target in modules() else str(node.module) for target in inner]
        else:
            continue
        for target in targets:
            assert target != "treadle", f"{name}, line {node.lineno}: import from the module that defines the name"
            if target.split(".")[0] == "treadle":
                yield Import(name, target, node.lineno)


@cache
def all_imports() -> list[Import]:
    # The package itself only names what it loads on first use.
    return [found for name in modules() if name != "treadle" for found in imports_of(name, running_nodes)]


def typing_imports() -> list[Import]:
    """Return all imports, those that only type checkers see among them."""
    return [found for name in modules() if name != "treadle" for found in imports_of(name, ast.walk)]


def room(module: str) -> str:
    """Return the room of a module."""
    below = module.removeprefix("treadle.")
    return max((one for one in ORDER if f"{below}.".startswith(f"{one}.")), key=len)


def points_up(found: Import) -> bool:
    return ORDER.index(room(found.imported)) > ORDER.index(room(found.importer))
