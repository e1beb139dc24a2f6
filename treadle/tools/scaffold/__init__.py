"""Writes the files of a new project; its templates lie beside this file, as text that nothing imports."""

import keyword
import re
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from treadle.errors import ConfigError, check_choice

__all__ = ["DOORS", "Door", "existing_entries", "find_door", "package_name", "write_project"]

TEMPLATES = Path(__file__).parent / "template"
SUFFIX = ".template"
"""At the end of every template's name, so that no tool takes it for a program."""
FOLDERS = ("configs", "tests", "runs", "saved", "bench", "log", "train", "search", "dataset")
"""What the project has, or makes, beside its package."""


class Door(NamedTuple):
    """A way to use Treadle, and the project that begins it.

    Attributes:
        layers: The folders of templates that the project is made of.
        extras: The extras of Treadle that it needs.
        start: The command that trains; `@package@` stands for the name of the package.
    """

    layers: tuple[str, ...]
    extras: str
    start: str


RECOMMENDER = "treadle recsys --model @package@/model.py:Vectors --dataset demo-shop --config-file configs/train.yaml"
DOORS = {
    "core": Door(("common", "plain", "core"), "report", "python train.py"),
    "engine": Door(("common", "engine"), "report", "treadle train configs/train.py"),
    "recsys": Door(("common", "recsys"), "recsys,report", RECOMMENDER),
    "search": Door(("common", "plain", "search"), "report,search", "python search.py"),
}
"""The doors that a project may begin with."""


def find_door(name: str) -> Door:
    """Return a door by its name.

    Raises:
        ConfigError: There is none.

    >>> find_door("core").start
    'python train.py'
    """
    check_choice("--door", name, tuple(DOORS))
    return DOORS[name]


def package_name(folder: Path) -> str:
    """Return the name of the package in a project: that of its folder, as Python can import it.

    >>> package_name(Path("work/my-project"))
    'my_project'

    Raises:
        ConfigError: No package can, or should, have that name.
    """
    name = folder.resolve().name
    package = re.sub(r"[-. ]", "_", name).lower()
    if not package.isidentifier() or keyword.iskeyword(package):
        raise ConfigError(f"{name!r} is no name that Python can import; use letters, digits and _, such as my_project")
    if package in FOLDERS:
        raise ConfigError(f"{name!r} is what a folder of the project is called; choose another name")
    if package in sys.stdlib_module_names or _is_installed(package, folder):
        raise ConfigError(f"a package {package!r} is there already, and would be hidden; choose another name")
    return package


def _is_installed(package: str, folder: Path) -> bool:
    """Whether Python would find another package of that name than the one in, or at, the folder."""
    found = find_spec(package)
    if found is None:
        return False
    places = [Path(place).resolve() for place in found.submodule_search_locations or [found.origin or ""]]
    return not all(place.is_relative_to(folder.resolve()) for place in places)


def write_project(folder: Path, door: str = "engine") -> list[Path]:
    """Write a project into a folder, which is made, and return the files, relative to it.

    What else the folder holds stays as it is.

    Args:
        folder: The folder.
        door: Which way to use Treadle it shows: "core", "engine", "recsys" or "search".

    Raises:
        ConfigError: There is no such door, the name is none for a package, or one of the files is there, in which cases
            nothing is written; or the folder cannot be written.
    """
    package = package_name(folder)
    contents = dict(_filled(folder.resolve().name, package, find_door(door)))
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; choose another name")
    there = dict.fromkeys(str(path) for path in map(partial(_in_the_way, folder), contents) if path is not None)
    if there:
        raise ConfigError(
            f"{folder} holds {', '.join(there)} already; nothing was written: choose another name, or remove them"
        )
    try:
        for path, text in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the project cannot be written: {error}; choose another folder") from error
    return list(contents)


def _in_the_way(folder: Path, path: Path) -> Path | None:
    """Return what of a folder a new file would take the place of: itself, or a file where its own folder shall be."""
    parents = [parent for parent in path.parents if (folder / parent).exists() and not (folder / parent).is_dir()]
    return next(iter(parents), path if (folder / path).exists() else None)


def existing_entries(folder: Path) -> list[str]:
    """Return what a folder holds, for people: nothing of what is hidden, such as `.git`."""
    if not folder.is_dir():
        return []
    return sorted(path.name + "/" * path.is_dir() for path in folder.iterdir() if not path.name.startswith("."))


def _filled(project: str, package: str, door: Door) -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of every file of the project."""
    names = {"@project@": project, "@package@": package, "@extras@": door.extras}
    folders = [TEMPLATES / layer for layer in door.layers]
    templates = sorted((file.relative_to(folder), file) for folder in folders for file in folder.rglob(f"*{SUFFIX}"))
    for place, template in templates:
        path = str(place).removesuffix(SUFFIX)
        text = template.read_text(encoding="utf-8")
        for mark, name in names.items():
            path, text = path.replace(mark, name), text.replace(mark, name)
        yield Path(path), text
