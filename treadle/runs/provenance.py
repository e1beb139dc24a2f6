"""What a run was made from: the program, the user's own code, and the files that its settings and data name."""

import fnmatch
import json
import os
import site
import sys
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

_PACKAGE = os.path.dirname(os.path.dirname(__file__))

# Where packages are installed besides Python's own folders for them


PACKAGES = frozenset({"site-packages", "dist-packages"})
"""What folders of installed packages are called, those of other environments too."""
PROJECT = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
"""What the folder of a project has in it."""


@lru_cache(maxsize=8)
def installed_folders(search_path: tuple[str, ...], *working_in: str) -> tuple[str, ...]:
    """Return the folders whose modules are packages, and none of the user's own code; each ends in a separator.

    They are the folders that installers wrote into, those that `.pth` files add, and projects that are installed as
    links to them; but not the projects that one works in, which may be installed like that themselves.

    Args:
        search_path: Where Python looks for modules.
        working_in: The folders that one works in.
    """
    own = {find_project(folder) for folder in working_in if folder}
    linked = {folder for folder in _linked(search_path) if find_project(folder) not in own}
    written = {folder for folder in search_path if folder and _was_written_by_an_installer(folder)}
    forms = (os.path.abspath, os.path.realpath)
    return tuple(sorted({os.path.join(form(folder), "") for folder in linked | written for form in forms}))


def find_project(folder: str) -> str:
    """Return the folder of the project that a folder is in; the folder itself if it is in none."""
    full = Path(os.path.realpath(folder))
    return str(
        next((place for place in (full, *full.parents) if any((place / name).exists() for name in PROJECT)), full)
    )


def _was_written_by_an_installer(folder: str) -> bool:
    try:
        return bool(fnmatch.filter(os.listdir(folder), "*.dist-info"))
    except OSError:
        return False


def _linked(search_path: tuple[str, ...]) -> Iterator[str]:
    """Yield the folders that `.pth` files name, and those of projects that are installed as links."""
    places = {*search_path, *site.getsitepackages(), site.getusersitepackages()}
    for place in sorted(Path(place) for place in places if place and os.path.isdir(place)):
        if not PACKAGES.isdisjoint(place.parts):
            for file in place.glob("*.pth"):
                yield from _folders_in(file)
            for file in place.glob("*.dist-info/direct_url.json"):
                yield from _project_in(file)


def _folders_in(file: Path) -> Iterator[str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in map(str.strip, lines):
        # A line that imports is run by Python when it starts.
        if line and not line.startswith(("#", "import ", "import\t")) and (file.parent / line).is_dir():
            yield str(file.parent / line)


def _project_in(file: Path) -> Iterator[str]:
    try:
        noted = json.loads(file.read_text(encoding="utf-8"))
        parsed = urlparse(str(noted["url"]))
        if parsed.scheme == "file" and noted.get("dir_info", {}).get("editable"):
            yield unquote(parsed.path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return


SAMPLED_BYTES = 64 * 2**20
"""Of larger files the beginning and the end are looked at, and the size."""
MOST_FILES = 1_000
"""So many files of code, and entries of a folder, are looked at."""
DEEPEST = 8
"""So deep inside of each other are containers and data sets looked into."""


def origin(sources: Iterable[Any], *, deterministic: bool, but: Path) -> dict[str, Any]:
    """Return what a manifest says of where a run comes from.

    Args:
        sources: Plain data, and data sets, in which files may be named.
        deterministic: Whether the run was asked to give the same bits each time.
        but: A folder that is none of them: that of the run, which changes.
    """
    made_from = {"program": program(), "code": code(), "files": files_named(*sources, but=but)}
    return {**made_from, "determinism": determinism(deterministic)}


def program() -> dict[str, str] | None:
    """Return what this process runs: the path of a script, or the name of a module; None in a notebook or a shell."""
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if path is None or not os.path.isfile(path) or is_library(os.path.abspath(path)):
        return None
    if name is not None and name != "__main__":
        return {"module": str(name).removesuffix(".__main__")}
    return {"script": os.path.abspath(path)}


@cache
def _libraries() -> tuple[str, ...]:
    """Return where libraries and commands are installed, Treadle among them.

    As text, for thousands of modules are looked at; and not when this is imported, for it loads a module of Python's.
    """
    paths = [path for name, path in sysconfig.get_paths().items() if "lib" in name or name == "scripts"]
    forms = (os.path.abspath, os.path.realpath)
    return tuple({f"{form(path)}{os.sep}" for path in (*paths, _PACKAGE) for form in forms})


def is_library(path: str) -> bool:
    """Whether a file, given by its full path, belongs to Python, an installed package or Treadle, not to the user.

    Packages are installed elsewhere, too: in a folder that a `.pth` file or `PYTHONPATH` adds, or as a link to the
    project that they are developed in. The project that one works in stays the user's, installed or not.
    """
    folders = (*_libraries(), *installed_folders(tuple(sys.path), *_working_in()))
    forms = (path, os.path.realpath(path))
    return any(form.startswith(folders) or not PACKAGES.isdisjoint(form.split(os.sep)) for form in forms)


def _working_in() -> tuple[str, str]:
    """Return the folders that one works in: the working folder, and that of the program."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed
        here = ""
    return here, os.path.dirname(os.path.abspath(main)) if isinstance(main, str) else here


def code() -> dict[str, str]:
    """Return a checksum of every file of the user's that was imported, by its path."""
    # Thousands of modules are looked at, nearly all of them libraries': no call for each of them.
    libraries = _libraries()
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    sources = [file for file in files if isinstance(file, str) and file.endswith(".py")]
    paths = {os.path.abspath(file) for file in sources if not file.startswith(libraries)}
    return _checksums(sorted([path for path in paths if not _was_library(path)])[:MOST_FILES])


def _checksums(paths: Iterable[str]) -> dict[str, str]:
    """Return the checksums of what can be read, by the path from the working folder where it is below that."""
    found = {path: file_checksum(path) for path in paths}
    here = os.path.join(os.getcwd(), "")
    return {path.removeprefix(here): checksum for path, checksum in found.items() if checksum is not None}


@cache
def _was_library(path: str) -> bool:
    """Whether a file that was imported is a library's; of hundreds of files, links are followed at the first start."""
    return is_library(path)


def files_named(*values: Any, but: Path | None = None) -> dict[str, str]:
    """Return a checksum of every file or folder that is named in plain data, or in the attributes of a data set.

    Args:
        values: The data, and data sets.
        but: A folder to leave out, with what is in it and what it is in.
    """
    paths = {path for value in values for path in _paths_in(value)}
    hidden = None if but is None else os.path.abspath(but)
    return _checksums(sorted(path for path in paths if hidden is None or not _is_related(path, hidden)))


def _is_related(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) in (path, folder)


def _paths_in(value: Any) -> Iterator[str]:
    """Yield the paths in plain data, or among the attributes of a data set and of the data sets that it wraps."""
    waiting, seen, looked_at = [(value, 0)], set[int](), 0
    while waiting and looked_at < 10 * MOST_FILES:
        one, depth = waiting.pop()
        looked_at += 1
        if isinstance(one, (str, Path)):
            if _may_be_path(str(one)):
                yield os.path.abspath(one)
        elif id(one) not in seen and depth < DEEPEST:
            # Objects may hold each other, and each is looked at once.
            seen.add(id(one))
            waiting += [(item, depth + 1) for item in _inside(one)]


def _inside(value: Any) -> list[Any]:
    """Return what plain containers hold, and what the attributes of an object hold that can be indexed or iterated."""
    if isinstance(value, dict):
        return list(value.values())[:MOST_FILES]
    if isinstance(value, (list, tuple)):
        return list(value[:MOST_FILES])
    is_data = hasattr(value, "__getitem__") or hasattr(value, "__iter__")
    return list(vars(value).values()) if is_data and hasattr(value, "__dict__") else []


def _may_be_path(text: str) -> bool:
    # A word such as "cpu" may be the name of a file by chance; the folder one is in, or above, is no data.
    if not text or len(text) > 4_000 or "\0" in text or (os.sep not in text and "." not in text):
        return False
    return os.path.exists(text) and not Path.cwd().is_relative_to(os.path.abspath(text))


def file_checksum(path: str) -> str | None:
    """Return a checksum of a file, or of the names and sizes in a folder; None if there is nothing to read."""
    try:
        if os.path.isdir(path):
            return f"folder {_of_folder(Path(path)):08x}"
        state = os.stat(path)
        return _of_file(path, state.st_size, state.st_mtime_ns)
    except OSError:
        return None


def _of_folder(folder: Path) -> int:
    """Return a checksum of the names and sizes in a folder, and of what is in the files unless that is much."""
    states = {path: path.stat() for path in _below(folder)}
    is_small = sum(state.st_size for state in states.values()) <= SAMPLED_BYTES
    inside = {
        path: _of_file(str(path), state.st_size, state.st_mtime_ns) if is_small else f"{state.st_size} bytes"
        for path, state in states.items()
    }
    entries = sorted(f"{path.relative_to(folder)} {found}" for path, found in inside.items())
    return zlib.crc32("\n".join(entries).encode())


def _below(folder: Path) -> Iterable[Path]:
    found = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            found += 1
            if found > MOST_FILES:
                return
            yield Path(place) / name


@lru_cache(maxsize=4 * MOST_FILES)
def _of_file(path: str, size: int, changed: int) -> str:
    """Return the size and the CRC-32 of a file; asked again for a file that has not changed, it is not read again."""
    value = 0
    with open(path, "rb") as file:
        for start in (0,) if size <= SAMPLED_BYTES else (0, size - SAMPLED_BYTES // 2):
            file.seek(start)
            value = zlib.crc32(file.read(SAMPLED_BYTES if size <= SAMPLED_BYTES else SAMPLED_BYTES // 2), value)
    return f"{size} bytes {value:08x}"


def determinism(wanted: bool) -> dict[str, Any]:
    """Return what decides whether torch gives the same bits each time.

    Args:
        wanted: Whether the run was asked to be deterministic.
    """
    import torch

    return {
        "deterministic": wanted,
        "algorithms": wanted or torch.are_deterministic_algorithms_enabled(),
        "cudnn benchmark": torch.backends.cudnn.benchmark,
        "cublas workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        "hash seed": os.environ.get("PYTHONHASHSEED"),
    }
