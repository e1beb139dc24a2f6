"""Where packages are installed besides Python's own folders for them."""

import fnmatch
import json
import os
import site
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlparse

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
    own = {project_of(folder) for folder in working_in if folder}
    linked = {folder for folder in _linked(search_path) if project_of(folder) not in own}
    written = {folder for folder in search_path if folder and _was_written_by_an_installer(folder)}
    forms = (os.path.abspath, os.path.realpath)
    return tuple(sorted({os.path.join(form(folder), "") for folder in linked | written for form in forms}))


def project_of(folder: str) -> str:
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
