"""The public names are exactly those that are exported, and each of them says what it is."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import treadle

PACKAGE = Path(treadle.__file__).parent
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree_of(module: str) -> ast.Module:
    path = PACKAGE.parent.joinpath(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def all_modules() -> list[str]:
    found = pkgutil.walk_packages([str(PACKAGE)], "treadle.")
    return ["treadle", *sorted(module.name for module in found)]


def is_public(module: str) -> bool:
    return not any(part.startswith("_") for part in module.split("."))


def test_each_exported_name_stands_there_once() -> None:
    assert len(treadle.__all__) == len(set(treadle.__all__))


@pytest.mark.parametrize("name", treadle.__all__)
def test_an_exported_name_resolves(name: str) -> None:
    assert getattr(treadle, name) is not None


def test_dir_lists_the_exported_names_and_nothing_else() -> None:
    assert dir(treadle) == sorted(treadle.__all__)


def test_a_star_import_gives_the_exported_names_and_nothing_else() -> None:
    names: dict[str, object] = {}
    exec("from treadle import *", names)  # noqa: S102 - a function cannot hold this import
    assert set(names) - {"__builtins__"} == set(treadle.__all__)


def test_type_checkers_see_the_names_that_are_exported() -> None:
    block = next(node for node in tree_of("treadle").body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    seen = {
        alias.asname or alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == set(treadle.__all__) - {"__version__"}


def test_type_checkers_and_readers_are_sent_to_the_same_place() -> None:
    block = next(node for node in tree_of("treadle").body if isinstance(node, ast.If))
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            seen = getattr(importlib.import_module(str(node.module)), alias.name)
            assert getattr(treadle, alias.name) is seen


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'treadle' has no attribute 'Trainr'"):
        treadle.Trainr  # noqa: B018
    with pytest.raises(ImportError, match="Trainr"):
        from treadle import Trainr  # noqa: F401


def test_using_one_name_loads_only_what_it_needs() -> None:
    program = """
import sys, treadle
assert "Trainer" in dir(treadle)
assert not [name for name in sys.modules if name.startswith("treadle.")]
treadle.StopTrainingError
assert [name for name in sys.modules if name.startswith("treadle.")] == ["treadle.errors"]
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name in treadle.__all__ if name != "__version__"])
def test_an_exported_name_is_documented(name: str) -> None:
    value = getattr(treadle, name)
    if isinstance(value, (ModuleType, type)) or inspect.isfunction(value):
        assert vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    else:
        assert name in documented_values(f"treadle.{treadle._HOMES[name]}")


def documented_values(module: str) -> set[str]:
    """Return the names that a module gives a value, with a string below that says what it is."""
    body = tree_of(module).body
    return {
        ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
        for node, below in pairwise(body)
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def test_the_version_is_that_of_the_project() -> None:
    text = (PACKAGE.parent / "pyproject.toml").read_text()
    assert f'\nversion = "{treadle.__version__}"\n' in text


@pytest.mark.parametrize("module", [name for name in all_modules() if is_public(name)])
def test_every_name_that_a_module_exports_resolves(module: str) -> None:
    loaded = importlib.import_module(module)
    exported = getattr(loaded, "__all__", [])
    assert len(exported) == len(set(exported))
    assert [name for name in exported if not hasattr(loaded, name)] == []


def test_every_package_says_what_it_exports() -> None:
    packages = [name for name in all_modules() if (PACKAGE.parent / name.replace(".", "/")).is_dir()]
    # One with nothing but a docstring exports nothing: its modules are imported from.
    exporting = [name for name in packages if len(tree_of(name).body) > 1]
    assert [name for name in exporting if not hasattr(importlib.import_module(name), "__all__")] == []


def test_the_package_is_marked_as_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def public_definitions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Definition]]:
    """Yield the classes and functions with public names, and the methods of such classes."""
    for node in body:
        # The shapes that one function can be called in are described where it is written.
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(one) == "overload" for one in node.decorator_list):
            continue
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield f"{prefix}.{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body, f"{prefix}.{node.name}")


def is_sentence(text: str | None) -> bool:
    return text is not None and text.strip().splitlines()[0].endswith(".")


@pytest.mark.parametrize("module", all_modules())
def test_everything_public_has_a_docstring_that_begins_with_a_sentence(module: str) -> None:
    tree = tree_of(module)
    places: list[tuple[str, ast.Module | Definition]] = [(module, tree), *public_definitions(tree.body, module)]
    wrong = [
        f"{name}: {ast.get_docstring(node)!r}" for name, node in places if not is_sentence(ast.get_docstring(node))
    ]
    assert not wrong, "\n".join(wrong)
